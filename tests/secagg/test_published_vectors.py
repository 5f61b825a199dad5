"""The hazardous layer against published vectors: RFC 7748, 8032, 5869, 8439 and Project Wycheproof."""

from __future__ import annotations

import hmac
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow import crypto
from hedgerow.crypto import PrimitiveFault

VECTORS = Path(__file__).parent.parent / "vectors"


def load(name: str) -> dict[str, Any]:
    return json.loads((VECTORS / name).read_text())


def raw(text: str) -> bytes:
    return bytes.fromhex(text)


def test_x25519_gives_the_products_of_rfc_7748():
    """The scalar multiplications of section 5.2 and the exchange of section 6.1 come out bit for bit."""
    vectors = load("rfc7748_x25519.json")
    for case in vectors["scalar_multiplication"]:
        assert crypto.SecretKey(raw(case["scalar"])).agree(raw(case["u"])).hex() == case["result"]
    for case in vectors["diffie_hellman"]:
        alice, bob = crypto.SecretKey(raw(case["alice_secret"])), crypto.SecretKey(raw(case["bob_secret"]))
        assert alice.public.hex() == case["alice_public"] and bob.public.hex() == case["bob_public"]
        assert alice.agree(bob.public) == bob.agree(alice.public) == raw(case["shared"])


def test_x25519_survives_a_thousand_iterations():
    """The iterated test of RFC 7748 section 5.2: an error in any bit anywhere would spread to the end."""
    scalar = u = (9).to_bytes(32, "little")
    wanted = {case["iterations"]: case["result"] for case in load("rfc7748_x25519.json")["iterated"]}
    for iteration in range(1, 1001):
        scalar, u = crypto.SecretKey(scalar).agree(u), scalar
        if iteration in wanted:
            assert scalar.hex() == wanted[iteration]


def test_x25519_wycheproof_and_every_zero_secret_is_refused():
    """All 518 cases: the right secret, or, where the secret is all zero (low-order keys), a refusal."""
    cases = load("wycheproof_x25519.json")["tests"]
    refused = 0
    for case in cases:
        secret = crypto.SecretKey(raw(case["private"]))
        assert crypto.is_low_order(raw(case["public"])) == (raw(case["shared"]) == bytes(32))
        if raw(case["shared"]) == bytes(32):
            with pytest.raises(PrimitiveFault, match="low order"):
                secret.agree(raw(case["public"]))
            refused += 1
        else:
            assert secret.agree(raw(case["public"])).hex() == case["shared"], case["tcId"]
    assert len(cases) == 518 and refused == sum("ZeroSharedSecret" in case["flags"] for case in cases) >= 20


def test_ed25519_signs_as_rfc_8032_says(monkeypatch):
    """Section 7.1, with our domain prefix taken away: the keys and signatures are those of the RFC."""
    monkeypatch.setattr(crypto, "_to_sign", lambda domain, body: body)
    monkeypatch.setattr(crypto, "VERIFIED", {})
    for case in load("rfc8032_ed25519.json")["tests"]:
        signer = crypto.Identity(raw(case["seed"]))
        assert signer.public.hex() == case["public"]
        assert signer.sign(b"", raw(case["message"])).hex() == case["signature"]
        crypto.verify(signer.public, b"", raw(case["message"]), raw(case["signature"]))


def test_ed25519_wycheproof(monkeypatch):
    """All 210 cases: malleable, truncated, padded and forged signatures are refused, valid ones pass.

    "Acceptable" means valid under a key with a torsion part; where the whole key is one, our wrapper refuses it.
    """
    monkeypatch.setattr(crypto, "_to_sign", lambda domain, body: body)
    monkeypatch.setattr(crypto, "VERIFIED", {})
    for case in load("wycheproof_ed25519.json")["tests"]:
        arguments = (raw(case["pk"]), b"", raw(case["msg"]), raw(case["sig"]))
        if case["result"] == "valid":
            crypto.verify(*arguments)
        elif case["result"] == "invalid" or "SmallOrderPublicKey" in case["flags"]:
            with pytest.raises(PrimitiveFault):
                crypto.verify(*arguments)


def test_hkdf_gives_the_keys_of_rfc_5869_and_wycheproof():
    """Appendix A.1 to A.3 and all 86 Wycheproof cases, over-long outputs refused; the second step also alone."""
    for case in load("rfc5869_hkdf.json")["tests"]:
        derived = crypto.hkdf(raw(case["ikm"]), raw(case["salt"]), raw(case["info"]), case["length"])
        assert derived.hex() == case["okm"]
        extracted = hmac.digest(raw(case["salt"]) or bytes(32), raw(case["ikm"]), "sha256")
        assert crypto.expand(extracted, raw(case["info"])).hex() == case["okm"][:64]
    for case in load("wycheproof_hkdf_sha256.json")["tests"]:
        arguments = (raw(case["ikm"]), raw(case["salt"]), raw(case["info"]), case["size"])
        if case["result"] == "valid":
            assert crypto.hkdf(*arguments).hex() == case["okm"], case["tcId"]
        else:
            with pytest.raises(ValueError, match="8160"):
                crypto.hkdf(*arguments)


@pytest.mark.parametrize("width", [32, 64])
def test_masks_are_the_key_streams_of_rfc_8439(width):
    """Appendix A.1: a mask is the key stream from counter zero with a zero nonce, read as little-endian words."""
    for case in load("rfc8439_chacha20.json")["keystreams"]:
        stream_length = 64 * (case["counter"] + 1)
        total = np.zeros(stream_length * 8 // width, dtype=crypto.DTYPES[width])
        crypto.add_keystreams(total, [raw(case["key"])], [])
        assert total.tobytes()[-64:].hex() == case["keystream"]
        crypto.add_keystreams(total, [], [raw(case["key"])])
        assert not total.any()


def test_chacha20_encrypts_as_rfc_8439_says():
    """Appendix A.2, through the same function as the masks, with the counter and nonce of the RFC."""
    for case in load("rfc8439_chacha20.json")["encryptions"]:
        plaintext = raw(case["plaintext"])
        start = case["counter"].to_bytes(4, "little") + raw(case["nonce"])
        stream = crypto.keystream(raw(case["key"]), len(plaintext), start)
        assert bytes(a ^ b for a, b in zip(stream, plaintext, strict=True)).hex() == case["ciphertext"]


def test_derived_entropy_is_the_construction_of_its_docstring():
    """Fixed bytes, made by HMAC and ChaCha20 alone: a run that was begun is drawn alike by every later version."""
    entropy = crypto.DerivedEntropy(bytes(range(32)), b"first")
    drawn = [entropy.draw(16), entropy.draw(100)[84:]]
    entropy.hear(b"reply")
    drawn.append(entropy.draw(16))
    assert [each.hex() for each in drawn] == [
        "c9363e01e259b6a763fa7f76c00543e5",
        "0ccb093956e5ed79c12da713c538fbef",
        "91f9c1cdabbed15d71063f4658f81e13",
    ]
    with pytest.raises(PrimitiveFault):
        crypto.DerivedEntropy(bytes(31), b"first")


def test_chacha20_poly1305_wycheproof():
    """All 325 cases: valid ones seal and open to the published bytes, modified tags and odd nonces are refused."""
    for case in load("wycheproof_chacha20_poly1305.json")["tests"]:
        key, nonce, context = raw(case["key"]), raw(case["iv"]), raw(case["aad"])
        sealed = nonce + raw(case["ct"]) + raw(case["tag"])
        if case["result"] == "valid":
            assert crypto.seal(key, raw(case["msg"]), context, lambda length, nonce=nonce: nonce) == sealed
            assert crypto.unseal(key, sealed, context).hex() == case["msg"]
        else:
            with pytest.raises(PrimitiveFault):
                crypto.unseal(key, sealed, context)
            if len(nonce) != 12:
                with pytest.raises(PrimitiveFault, match="nonce"):
                    crypto.seal(key, raw(case["msg"]), context, lambda length, nonce=nonce: nonce)
