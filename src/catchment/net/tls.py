"""TLS for the main port: one policy, and a certificate that can be changed while connections are open.

The listener has a context without a certificate. At each handshake OpenSSL asks for one, with or without a server name
in the hello, and is given that of the context last loaded. A reload loads a whole new context first and then changes
one reference: a wrong file changes nothing, and open connections keep what they began with.
Policy (facts/reliability.md, "TLS"): TLS 1.2 and 1.3; for 1.2 only ephemeral keys and authenticated encryption.
"""

from __future__ import annotations

import logging
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from catchment import metrics
from catchment.config import Settings
from catchment.errors import UserError
from catchment.net.http import HANDSHAKE_SECONDS

log = logging.getLogger(__name__)

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
MISMATCH: Final = "KEY_VALUES_MISMATCH"
"""OpenSSL's word for a key of another certificate."""

TLS_SETTINGS: Final = ("tls_cert", "tls_key", "tls_key_password")
SOON: Final = timedelta(days=14)
"""How long before its end a certificate is worth a warning."""


class ServerTls:
    """What the listener needs: a context, and a way to give it another certificate."""

    def __init__(self, settings: Settings) -> None:
        """Load certificate and key.

        Raises:
            UserError: they cannot be used; the text says what to do.
        """
        self._current = load(settings)
        self.context = _policy()
        self.context.sni_callback = self._choose

    @property
    def options(self) -> dict[str, Any]:
        """What `create_server` is told."""
        return {
            "ssl": self.context,
            "ssl_handshake_timeout": HANDSHAKE_SECONDS,
            "ssl_shutdown_timeout": HANDSHAKE_SECONDS,
        }

    def use(self, loaded: ssl.SSLContext) -> None:
        """Take this certificate for connections that begin from now on."""
        self._current = loaded

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._current


def load(settings: Settings) -> ssl.SSLContext:
    """A context with the certificate and key of the settings.

    Raises:
        UserError: they cannot be used; the text says what to do.
    """
    if not (settings.tls_cert and settings.tls_key):
        missing = "tls_key" if settings.tls_cert else "tls_cert"
        raise UserError(f"TLS needs both tls_cert and tls_key; {missing} is not set.")
    cert, key = Path(settings.tls_cert), Path(settings.tls_key)
    certificate = read_certificate(cert)
    encrypted = b"ENCRYPTED" in _read(key, "tls_key")
    if stat.S_IMODE(key.stat().st_mode) & 0o007:
        raise UserError(f"The private key {key} (tls_key) can be read by everyone; run: chmod 600 {key}")
    context = _policy()
    try:
        # Without a password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(cert, key, password=lambda: settings.tls_key_password)
    except ssl.SSLError as error:
        if encrypted and error.reason != MISMATCH:
            next_step = "tls_key_password is not its password" if settings.tls_key_password else "set tls_key_password"
            raise UserError(f"The private key {key} (tls_key) is encrypted: {next_step}.") from None
        raise UserError(_told(error, cert, key)) from None
    except ValueError as error:  # a password OpenSSL cannot take
        raise UserError(f"tls_key_password cannot be used: {error}.") from None
    _tell_of_its_end(cert, certificate.not_valid_after_utc)
    return context


def _policy() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    # Our one port speaks HTTP/1.1 and upgrades from it; a client that offers more must not choose more.
    context.set_alpn_protocols(["http/1.1"])
    return context


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"The file {path} ({name}) cannot be read: {error.strerror}. Name a PEM file this user may read."
        ) from None


def read_certificate(path: Path) -> x509.Certificate:
    """The first certificate in the file: the node's own.

    Raises:
        UserError: there is none.
    """
    try:
        return x509.load_pem_x509_certificate(_read(path, "tls_cert"))
    except ValueError:
        raise UserError(
            f"{path} (tls_cert) holds no certificate in PEM form: expected is a file that begins with "
            "-----BEGIN CERTIFICATE-----, the node's own certificate first, then the chain."
        ) from None


def _tell_of_its_end(path: Path, end: datetime) -> None:
    """Warn of a certificate that has ended or is about to; refusing it is the clients' to do."""
    metrics.CERTIFICATE_END.set(end.timestamp())
    now = datetime.now(UTC)
    if end < now:
        log.warning("the certificate in %s ended at %s: clients will refuse it; renew it and send SIGHUP", path, end)
    elif end < now + SOON:
        log.warning("the certificate in %s ends at %s: renew it and send SIGHUP", path, end)


def _told(error: ssl.SSLError, cert: Path, key: Path) -> str:
    reason = error.reason or str(error)
    if reason == MISMATCH:
        return f"The private key {key} (tls_key) does not belong to the certificate {cert} (tls_cert): name its own."
    return (
        f"The certificate {cert} or the private key {key} cannot be used ({reason.replace('_', ' ').lower()}): "
        "expected are PEM files, the key one that belongs to the first certificate and is at least 2048 bits for RSA."
    )
