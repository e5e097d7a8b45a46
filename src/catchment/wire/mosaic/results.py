"""The result codes of Mosaic (spec/mosaic-messages.md, "Result Codes"), and faults that carry one."""

from __future__ import annotations

from enum import IntEnum

from catchment.errors import PeerFault


class Result(IntEnum):
    """How a request ended, by the document's own names. Code 0 (UNDEFINED) is not to be used and is not read."""

    SUCCESS = 1
    ACCEPTED = 2
    DUPLICATE = 3
    NO_CONSUMERS = 4
    NOT_FOUND = 16
    REQUIRES_AUTHENTICATION = 32
    UNAUTHORIZED = 33
    INVALID = 36
    TOO_OPEN = 37
    TOO_LARGE = 38
    TOO_FAST = 39
    IP_TEMP_BANNED = 48
    IP_PERM_BANNED = 49
    PUBKEY_TEMP_BANNED = 50
    PUBKEY_PERM_BANNED = 51
    SHUTTING_DOWN = 64
    TEMPORARY_ERROR = 65
    PERSISTENT_ERROR = 66
    GENERAL_ERROR = 67

    @property
    def is_success(self) -> bool:
        """Whether what was asked for was done (facts/mosaic.md, section 3.3)."""
        return self < 8


def fault(result: Result, message: str) -> PeerFault:
    """The peer's fault, to be answered with `result`."""
    return PeerFault(message, code=result.name)


def invalid(message: str) -> PeerFault:
    """A request that was invalid."""
    return fault(Result.INVALID, message)
