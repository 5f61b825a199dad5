"""Who a party is to the others: an Ed25519 key that signs, a pinned TLS certificate, a proof that they belong together.

The certificate is self-signed, over P-256: gRPC's TLS offers no Ed25519. Nobody certifies anybody; whoever pins the
certificate compares its SHA-256, so its dates say nothing and a clock that is wrong disturbs nothing. Its name is made
from its key, because TLS looks up trusted certificates by name.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import sha256

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from hedgerow.errors import RemoteProtocolError, UsageError

KEY_BYTES = 32
PROOF_BYTES = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PROOF_DOMAIN = b"hedgerow/identity/1/"
# RFC 5280, 4.1.2.5: this date means that there is no end.
_NO_END = datetime(9999, 12, 31, 23, 59, 59)
_BEFORE_ALL = datetime(2000, 1, 1)
# Crockford's alphabet: no letter that sounds or looks like a digit.
_SPOKEN = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class Role(StrEnum):
    """What a party does in a federation."""

    SITE = "site"
    COORDINATOR = "coordinator"
    MONITOR = "monitor"


def spoken(digest: bytes) -> str:
    """The first 160 bits of a digest as 8 groups of 4, to be read over the phone.

    Fewer bits would let whoever writes two files make them agree: a collision of n bits costs about 2^(n/2) tries.
    """
    number = int.from_bytes(digest[:20], "big")
    letters = "".join(_SPOKEN[number >> shift & 31] for shift in range(155, -1, -5))
    return "-".join(letters[start : start + 4] for start in range(0, 32, 4))


def check_name(name: str) -> str:
    """The name; raises UsageError unless it is 1 to 64 letters, digits, dots, dashes and underscores, in ASCII."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} cannot be a site's name.",
            cause="It goes into file names, logs and rosters that several people compare by eye.",
            remedy="Use 1 to 64 letters, digits, dots, dashes or underscores; begin with a letter or digit.",
            code="identity-name",
        )
    return name


@dataclass(frozen=True, slots=True)
class PublicIdentity:
    """What a party gives to the others.

    Args: name: as in the roster; role; identity_key: Ed25519, 32 bytes; certificate: DER of the TLS certificate;
        proof: the identity key's signature over all of this, 64 bytes.

    Raises RemoteProtocolError when the parts do not belong together, UsageError for a name that cannot be.
    """

    name: str
    role: Role
    identity_key: bytes
    certificate: bytes
    proof: bytes

    def __post_init__(self) -> None:
        check_name(self.name)
        try:
            # First of all, so that a certificate that was altered on the way is not even parsed.
            Ed25519PublicKey.from_public_bytes(self.identity_key).verify(self.proof, _to_prove(self))
            certificate = x509.load_der_x509_certificate(self.certificate)
            # Proves that whoever made the certificate has its key, so that nobody lists another's key as his own.
            certificate.verify_directly_issued_by(certificate)
            curve = certificate.public_key()
        except (ValueError, TypeError, InvalidSignature):
            raise _unproven(self.name) from None
        if not isinstance(curve, ec.EllipticCurvePublicKey) or not isinstance(curve.curve, ec.SECP256R1):
            raise _unproven(self.name)

    @property
    def certificate_pem(self) -> bytes:
        """The certificate as gRPC takes it."""
        return x509.load_der_x509_certificate(self.certificate).public_bytes(Encoding.PEM)

    @property
    def certificate_sha256(self) -> bytes:
        """What is pinned: SHA-256 of the certificate's DER, 32 bytes."""
        return sha256(self.certificate).digest()

    @property
    def tls_name(self) -> str:
        """The name that the certificate is for."""
        return tls_name(x509.load_der_x509_certificate(self.certificate).public_key())

    def digest(self) -> bytes:
        """SHA-256 over everything but the proof, 32 bytes."""
        return sha256(_to_prove(self)).digest()

    def fingerprint(self) -> str:
        """`digest` to be read over the phone."""
        return spoken(self.digest())


@dataclass(frozen=True, slots=True, repr=False)
class PrivateIdentity:
    """A party's secrets. Args: public; seed: of the Ed25519 key, 32 bytes; tls_key: PKCS #8 in PEM, not encrypted."""

    public: PublicIdentity
    seed: bytes
    tls_key: bytes

    def __post_init__(self) -> None:
        try:
            own = Ed25519PrivateKey.from_private_bytes(self.seed).public_key().public_bytes_raw()
            tls = load_pem_private_key(self.tls_key, None).public_key()
        except (ValueError, TypeError):
            raise _unproven(self.public.name) from None
        certified = x509.load_der_x509_certificate(self.public.certificate).public_key()
        if own != self.public.identity_key or tls != certified:
            raise _unproven(self.public.name)

    def __repr__(self) -> str:
        return f"PrivateIdentity({self.public.name!r})"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("An identity is not pickled: its keys would be written in clear.")


def new_identity(name: str, role: Role, seed: bytes) -> PrivateIdentity:
    """A new identity. Args: seed: 32 bytes from the operating system's generator; the TLS key draws its own."""
    check_name(name)
    signing = Ed25519PrivateKey.from_private_bytes(seed)
    tls_key = ec.generate_private_key(ec.SECP256R1())
    certificate = _self_signed(tls_key)
    key = signing.public_key().public_bytes_raw()
    proof = signing.sign(_proof_of(name, role, key, certificate))
    secret = tls_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return PrivateIdentity(PublicIdentity(name, role, key, certificate, proof), seed, secret)


def tls_name(key: object) -> str:
    """A name that no other key has, in a domain that no resolver knows (RFC 6761)."""
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise TypeError("A TLS key of Hedgerow is one of P-256.")
    return sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()[:40] + ".invalid"


def _self_signed(key: ec.EllipticCurvePrivateKey) -> bytes:
    name = tls_name(key.public_key())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(_BEFORE_ALL).not_valid_after(_NO_END)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    # It vouches for nobody but itself.
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


def _to_prove(identity: PublicIdentity) -> bytes:
    return _proof_of(identity.name, identity.role, identity.identity_key, identity.certificate)


def _proof_of(name: str, role: Role, key: bytes, certificate: bytes) -> bytes:
    parts = (name.encode(), role.value.encode(), key, certificate)
    return _PROOF_DOMAIN + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _unproven(name: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"The identity of {name!r} does not prove that its keys and its name belong together.",
        cause="The file was edited or damaged, or somebody made it out of another party's.",
        remedy="Ask that party for its public file again, and compare the fingerprints over the phone.",
        code="identity-proof",
    )


def to_base64(raw: bytes) -> str:
    """Bytes as text."""
    return base64.b64encode(raw).decode()


def from_base64(text: str) -> bytes:
    """Text as bytes; raises ValueError."""
    return base64.b64decode(text, validate=True)
