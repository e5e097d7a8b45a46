"""The exception tree: whose fault it is, and what the peer or the user is told.

`PeerFault` carries the protocol's own error code; sessions turn it into the protocol's own answer in one place.
`OurFault` is answered without a detail of our insides. `UserError` ends a command with one sentence and exit code 2.
"""

from __future__ import annotations


class CatchmentError(Exception):
    """Root of everything this package raises on purpose."""


class PeerFault(CatchmentError):
    """The peer sent something its protocol does not allow.

    Attributes:
        code: the protocol's error code (a Streamr error code, a JSON-RPC number as text, a Mosaic result code).
        request_id: the request it answers, empty when it could not be read.
        reason: what it is counted under: one of a few words, the code where none is given.
    """

    def __init__(self, message: str, *, code: str, request_id: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.request_id = request_id
        self.reason = reason or code


class OurFault(CatchmentError):
    """We could not do what was rightly asked."""


class StoreFull(OurFault):
    """The disk or the map is full. Nothing of the batch was kept; the store stays usable and may be tried again."""


class StoreCorrupt(OurFault):
    """A record does not match its checksum. Nothing is deleted; the message names the offset."""


class UserError(CatchmentError):
    """A command cannot go on; the text says what happened, to what, and what to do next."""


class MissingExtra(UserError):
    """A part needs packages of an extra that is not installed."""

    def __init__(self, extra: str, *, needed_for: str, missing: str) -> None:
        super().__init__(
            f"{needed_for} needs the '{extra}' extra ({missing} is not installed): run pip install 'catchment[{extra}]'"
        )
        self.extra = extra
