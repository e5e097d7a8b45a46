"""Certificates of Mosaic: self-signed, Ed25519, worth as much as the key in them (facts/mosaic.md, section 3.5)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import NameOID

from catchment.crypto import mosaic

NAME: Final = "mosaic"
_FIRST_DAY: Final = datetime(2020, 1, 1, tzinfo=UTC)
_LAST_DAY: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""RFC 5280, section 4.1.2.5: the date of a certificate that has no good end."""


def private_key(signer: mosaic.Signer) -> Ed25519PrivateKey:
    """The key as TLS wants it."""
    return Ed25519PrivateKey.from_private_bytes(signer.secret)


def certificate(signer: mosaic.Signer) -> x509.Certificate:
    """A certificate for a key, signed by itself."""
    key = private_key(signer)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FIRST_DAY)
        .not_valid_after(_LAST_DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, algorithm=None)
    )


def key_of(found: x509.Certificate) -> bytes | None:
    """The key a peer has proven by its certificate; None when it is none of Mosaic's."""
    public = found.public_key()
    if not isinstance(public, Ed25519PublicKey):
        return None
    raw = public.public_bytes_raw()
    return raw if mosaic.is_key(raw) else None
