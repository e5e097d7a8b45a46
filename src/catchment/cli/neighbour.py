"""Asking a node that runs on this machine over HTTP, as `catchment doctor` does."""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path
from typing import Final

import msgspec

from catchment.config import Settings

MAX_ANSWER: Final = 4 * 1024 * 1024
SECONDS: Final = 5
ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - whom to ask, not where to listen


def fetch(settings: Settings, path: str) -> bytes | None:
    """A page of the node at the settings' address; None when nobody answers."""
    host = ANYWHERE.get(settings.host, settings.host)
    connection: http.client.HTTPConnection
    try:
        if settings.tls_cert:
            connection = http.client.HTTPSConnection(host, settings.port, timeout=SECONDS, context=_context(settings))
        else:
            connection = http.client.HTTPConnection(host, settings.port, timeout=SECONDS)
        try:
            connection.request("GET", path)
            return connection.getresponse().read(MAX_ANSWER)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError):
        return None


def _context(settings: Settings) -> ssl.SSLContext:
    """Trusts the very certificate the settings name; the address asked may not be a name in it."""
    context = ssl.create_default_context(cafile=str(Path(settings.tls_cert)))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = False
    return context


def ask(settings: Settings, path: str) -> dict[str, object] | None:
    """The same as a JSON object."""
    body = fetch(settings, path)
    if body is None:
        return None
    try:
        return msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        return None
