"""Masks and derived keys: everything that must separate two keys does, and masks fill their words."""

from __future__ import annotations

import hmac
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow import crypto
from hedgerow.codec import digest
from hedgerow.crypto import DTYPES, PrimitiveFault, SecretKey, add_keystreams, hkdf, keystream
from hedgerow.secagg import keys
from hedgerow.secagg.keys import RoundContext, SlotChain
from hedgerow.secagg.messages import derive_share_context
from tests.secagg.mutations import looks_uniform

ONE, OTHER, THIRD = SecretKey(b"\x01" * 32), SecretKey(b"\x02" * 32), SecretKey(b"\x03" * 32)
CONTEXT = RoundContext(b"e" * 32, b"s" * 32, 7)


def pair_secret(own, peer_public, node, peer, epoch=CONTEXT.epoch, slot=CONTEXT.slot):
    return keys.pair_secret(own, node, peer, peer_public, epoch, slot)


def vector_key(secret, vector_id, width, context=CONTEXT):
    return keys.vector_keys([secret], context, vector_id, width)[0]


def test_both_sides_of_a_pair_derive_one_secret():
    """Otherwise masks would not cancel."""
    assert pair_secret(ONE, OTHER.public, 3, 9) == pair_secret(OTHER, ONE.public, 9, 3)
    assert keys.channel_secret(ONE, OTHER.public, 3, 9, b"p" * 32) == keys.channel_secret(
        OTHER, ONE.public, 9, 3, b"p" * 32
    )


def test_everything_that_must_separate_keys_does():
    """Epoch, spec, slot, both numbers, both keys, vector and width: a change of any one gives another mask key."""
    contexts = [CONTEXT, RoundContext(b"f" * 32, b"s" * 32, 7), RoundContext(b"e" * 32, b"t" * 32, 7),
                RoundContext(b"e" * 32, b"s" * 32, 8)]  # fmt: skip
    variants = [
        pair_secret(*arguments)
        for arguments in (
            (ONE, OTHER.public, 3, 9),
            (ONE, OTHER.public, 3, 9, b"f" * 32),
            (ONE, OTHER.public, 3, 9, b"e" * 32, 8),
            (ONE, OTHER.public, 4, 9),
            (ONE, OTHER.public, 3, 8),
            (ONE, OTHER.public, 9, 3),
            (ONE, THIRD.public, 3, 9),
            (THIRD, OTHER.public, 3, 9),
        )
    ]
    variants += [keys.self_mask_secret(b"b" * 32, 9, CONTEXT)]
    variants += [keys.self_mask_secret(b"b" * 32, 3, context) for context in contexts]
    derived = [
        vector_key(secret, name, width, context)
        for secret in variants for name in ("g", "h") for width in (32, 64) for context in contexts
    ]  # fmt: skip
    derived += [keys.setup_share_key(b"c" * 32, *pair) for pair in ((1, 2), (2, 1))]
    derived += [keys.seed_share_key(b"c" * 32, *pair, slot) for pair in ((1, 2), (2, 1)) for slot in (1, 2)]
    everything = [*variants, *derived]
    assert len(set(everything)) == len(everything)
    assert all(len(key) == 32 for key in everything), "No seed is narrower than 256 bits."


HASHES, NODES, SLOTS = st.binary(min_size=32, max_size=32), st.integers(0, 4095), st.integers(0, 4095)


@given(HASHES, HASHES, SLOTS, NODES, NODES, HASHES, HASHES)
def test_each_key_of_a_slot_has_its_whole_context(epoch, spec, slot, one, other, payload, seed):
    """Pair secrets, seed-share keys and what seals a share follow from a digest over every part, each by itself."""
    context = RoundContext(epoch, spec, slot)
    number = [value.to_bytes(4, "big") for value in (one, other, slot)]
    ours, theirs = (number[0], ONE.public), (number[1], OTHER.public)
    whole = digest("pair", epoch, number[2], *(part for side in sorted([ours, theirs]) for part in side))
    expected = hkdf(ONE.agree(OTHER.public), epoch, b"hedgerow/secagg/1/" + whole)
    assert keys.pair_secret(ONE, one, other, OTHER.public, epoch, slot) == expected
    assert keys.pair_secret(OTHER, other, one, ONE.public, epoch, slot) == expected
    whole = digest("vector", epoch + spec + number[2], b"leaves", (64).to_bytes(4, "big"))
    # One block of HKDF-Expand is one HMAC (RFC 5869, section 2.3).
    masks = [hmac.digest(key, b"hedgerow/secagg/1/" + whole + b"\x01", "sha256") for key in (expected, seed)]
    assert keys.vector_keys([expected, seed], context, "leaves", 64) == masks
    whole = digest("seed-share", *number)
    assert keys.seed_share_key(seed, one, other, slot) == hkdf(seed, b"", b"hedgerow/secagg/1/" + whole)
    numbers = one.to_bytes(2, "big") + other.to_bytes(2, "big")
    whole = digest("sealed-seed-share", epoch + spec + number[2], numbers, payload, seed)
    assert derive_share_context(context, one, other, payload, seed) == whole


def test_everything_that_a_sealed_share_is_bound_to_counts():
    """Epoch, spec, slot, sender, holder, payload and commitment: a share that is moved to another does not open."""
    plain = (CONTEXT, 1, 2, b"p" * 32, b"c" * 32)
    contexts = [RoundContext(b"f" * 32, b"s" * 32, 7), RoundContext(b"e" * 32, b"t" * 32, 7),
                RoundContext(b"e" * 32, b"s" * 32, 8)]  # fmt: skip
    changed = [(context, *plain[1:]) for context in contexts]
    changed += [(CONTEXT, 3, 2, *plain[3:]), (CONTEXT, 1, 3, *plain[3:]), (CONTEXT, 2, 1, *plain[3:]),
                (*plain[:3], b"q" * 32, b"c" * 32), (*plain[:3], b"p" * 32, b"d" * 32),
                (*plain[:3], b"c" * 32, b"p" * 32)]  # fmt: skip
    bound = {derive_share_context(context, *rest) for context, *rest in [plain, *changed]}
    assert len(bound) == 1 + len(changed)


def test_vector_names_cannot_run_into_widths():
    """Lengths stand before the parts: ("a", 32) and a name that ends in the width's bytes are different contexts."""
    assert vector_key(bytes(32), "a", 32) != vector_key(bytes(32), "a\x00\x00\x00\x20", 0)


@pytest.mark.parametrize("width", [32, 64])
def test_masks_are_uniform_over_the_whole_word(width):
    """Chi-square on the lowest and the highest byte, and the top and bottom values of a byte occur."""
    total = np.zeros(1 << 18, DTYPES[width])
    add_keystreams(total, [b"k" * 32], [])
    assert looks_uniform(total)
    top = total.view(np.uint8).reshape(len(total), -1)[:, -1]
    assert {0, 255} <= set(top.tolist())


def test_the_mask_does_not_depend_on_how_it_is_cut():
    """Blocks are an implementation detail: lengths around their size give prefixes of one stream."""
    stream = np.frombuffer(keystream(b"k" * 32, 80_000), "<u4")
    for length in (1, 8191, 8192, 8193, 16_384, 20_000):
        total = np.zeros(length, DTYPES[32])
        add_keystreams(total, [b"k" * 32], [])
        assert (total == stream[:length]).all()


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("length", [8191, 100_000, 100_003])
def test_a_mask_made_by_several_threads_is_the_one_stream(monkeypatch, width, length):
    """Each thread starts the cipher at its own block: one key stream, whole, whatever the number of threads."""
    stream = np.frombuffer(keystream(b"k" * 32, length * width // 8), DTYPES[width])
    other = np.frombuffer(keystream(b"o" * 32, length * width // 8), DTYPES[width])
    monkeypatch.setattr(crypto, "_WORTH_A_THREAD", 0)
    for threads in (1, 2, 3, 7):
        monkeypatch.setattr(crypto, "_THREADS", threads)
        total = np.zeros(length, DTYPES[width])
        add_keystreams(total, [b"k" * 32], [b"o" * 32])
        assert (total == stream - other).all()


def test_a_bad_key_is_refused_by_the_threads_too(monkeypatch):
    """A fault in a thread must not end as a vector that lacks a mask."""
    monkeypatch.setattr(crypto, "_WORTH_A_THREAD", 0)
    with pytest.raises(PrimitiveFault):
        add_keystreams(np.zeros(1000, DTYPES[64]), [b"k" * 31], [])


def test_adding_and_subtracting_cancel_modulo_two_to_the_width():
    """What one node adds its neighbour subtracts, in any order and number."""
    total = np.arange(10_000, dtype=DTYPES[64])
    secrets = [bytes([i]) * 32 for i in range(5)]
    add_keystreams(total, secrets, secrets[::-1])
    assert (total == np.arange(10_000)).all()


@pytest.mark.parametrize("length", [0, 4, 31, 33])
def test_no_narrower_seed_is_accepted(length):
    """A 32-bit or truncated seed cannot reach the generator."""
    with pytest.raises(PrimitiveFault):
        add_keystreams(np.zeros(4, DTYPES[32]), [bytes(length)], [])


def test_the_chain_goes_forward_only_and_skips_alike():
    """Slot keys differ, do not depend on how the chain got there, and a later link does not contain an earlier one."""
    chain = SlotChain(b"l" * 32)
    publics = [SecretKey(secret).public for secret in chain.secrets(6)]
    assert len(set(publics)) == 6
    assert chain.after(2).after(5).current().public == publics[5] == chain.after(5).current().public
    links = [chain.after(slot).link for slot in range(6)]
    assert all(a != b for a, b in itertools.combinations(links, 2))


@pytest.mark.golden
def test_golden_keys_keep_their_bytes():
    """Two releases must derive the same keys: a changed label or order would only show between versions."""
    golden = {
        "pair": pair_secret(ONE, OTHER.public, 3, 9),
        "vector": vector_key(b"k" * 32, "leaves", 32),
        "self": keys.self_mask_secret(b"b" * 32, 3, CONTEXT),
        "commitment": keys.seed_commitment(b"b" * 32, 3, CONTEXT),
        "slot": SlotChain(b"l" * 32).after(3).current().public,
        "setup": keys.setup_share_key(b"c" * 32, 1, 2),
        "seed": keys.seed_share_key(b"c" * 32, 1, 2, 5),
    }
    assert {name: key.hex()[:32] for name, key in golden.items()} == GOLDEN


GOLDEN = {
    "pair": "dae1abf371973e1f0c01f424476facce",
    "vector": "eba47faf9c92ab2d6b7db93697d2ee8f",
    "self": "69f09d2d1378822c88da472163dc96cc",
    "commitment": "1703a08727a2b6427dd87746835afd2e",
    "slot": "1094a3166129e08b5a6275626905b9ad",
    "setup": "06e4b1808b9b52ca4af0f4856e21a163",
    "seed": "f2e6209407c6b5aa7edb7c58b5a8da20",
}
