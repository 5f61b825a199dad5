# SPDX-License-Identifier: Apache-2.0
"""Keys and certificates of Flower's own processes, as one machine makes them for a try."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID


def make_node_key(folder: Path, name: str) -> None:
    """A SuperNode's key in the form that `ssh-keygen -t ecdsa -b 384` gives it: `name` and `name.pub`."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = folder / name
    private.touch(0o600)
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    (folder / f"{name}.pub").write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))


def make_certificates(folder: Path, host: str = "localhost", days: int = 1) -> None:
    """A certificate authority and a certificate of `host` and 127.0.0.1: ca.pem, server.pem, server.key."""
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hedgerow")])
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName(host)])
    is_ca = x509.BasicConstraints(ca=True, path_length=None)
    for file, subject, key, extension in (("ca", ca, authority, is_ca), ("server", own, server, names)):
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(ca).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=1))
        builder = builder.not_valid_after(now + timedelta(days=days)).add_extension(extension, critical=file == "ca")
        certificate = builder.sign(authority, hashes.SHA256())
        (folder / f"{file}.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    secret = server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "server.key").touch(0o600)
    (folder / "server.key").write_bytes(secret)
