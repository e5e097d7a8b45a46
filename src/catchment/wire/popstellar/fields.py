"""What the fields of every PoPStellar object are made of, and how a wrong one is named.

Base64 is base64url with padding (spec/popstellar-protocol.md, "Representation of complex data types"; enforced:
facts/popstellar.md, section 1) in its one canonical form. Ids are hashes over the text, so a second text for the same
bytes would let a stranger make a second valid message out of a first.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, Final, Generic, TypeVar

import msgspec

from catchment.errors import PeerFault
from catchment.model import MAX_SAFE_INTEGER
from catchment.wire.refusals import MAX_TEXT, split_path


class ErrorCode(IntEnum):
    """spec/popstellar-protocol.md, "RPC answer error"."""

    INVALID_ACTION = -1
    INVALID_RESOURCE = -2
    ALREADY_EXISTS = -3
    INVALID_DATA = -4
    ACCESS_DENIED = -5
    INTERNAL = -6


def fault(text: str, code: ErrorCode = ErrorCode.INVALID_DATA) -> PeerFault:
    """A fault of the peer under one of the document's codes."""
    return PeerFault(text, code=str(code.value))


_ALPHABET: Final = "A-Za-z0-9_-"
# The bits of the last letter that stand for no byte must be zero.
_TWO: Final = "[AQgw]=="
_ONE: Final = "[AEIMQUYcgkosw048]="
BASE64_PATTERN: Final = rf"^(?:[{_ALPHABET}]{{4}})*(?:[{_ALPHABET}]{_TWO}|[{_ALPHABET}]{{2}}{_ONE})?\Z"
KEY_PATTERN: Final = rf"^[{_ALPHABET}]{{42}}{_ONE}\Z"
SIGNATURE_PATTERN: Final = rf"^[{_ALPHABET}]{{85}}{_TWO}\Z"
ADDRESS_PATTERN: Final = r"^(ws|wss)://.*(:\d{0,5})?/.*\Z"

Base64 = Annotated[str, msgspec.Meta(pattern=BASE64_PATTERN)]
Key = Annotated[str, msgspec.Meta(pattern=KEY_PATTERN)]
"""32 bytes: a public key or a hash."""
Signature = Annotated[str, msgspec.Meta(pattern=SIGNATURE_PATTERN)]
Timestamp = Annotated[int, msgspec.Meta(ge=0, le=MAX_SAFE_INTEGER)]
"""Seconds since 1970. The document says 64 bits; above 53 not every peer reads the same number."""
Natural = Annotated[int, msgspec.Meta(ge=0, le=MAX_SAFE_INTEGER)]
Integer = Annotated[int, msgspec.Meta(ge=-MAX_SAFE_INTEGER, le=MAX_SAFE_INTEGER)]
Address = Annotated[str, msgspec.Meta(pattern=ADDRESS_PATTERN, max_length=1024)]

_base64 = re.compile(BASE64_PATTERN)

PATTERN_WORDS: Final[dict[str, str]] = {
    BASE64_PATTERN: "base64url with padding",
    KEY_PATTERN: "32 bytes in base64url with padding",
    SIGNATURE_PATTERN: "64 bytes in base64url with padding",
    ADDRESS_PATTERN: "an address like wss://host:port/path",
}
"""How an error calls a pattern; modules with patterns of their own add to it."""


def encode_base64(data: bytes) -> str:
    """The canonical text of bytes."""
    return base64.urlsafe_b64encode(data).decode("ascii")


def decode_base64(text: str, name: str = "value") -> bytes:
    """The bytes of a text.

    Raises:
        PeerFault: it is not base64url with padding in its canonical form; the text names the field.
    """
    if _base64.match(text) is None:
        raise fault(f"{name}: expected base64url with padding.")
    return base64.urlsafe_b64decode(text)


Value = TypeVar("Value")


class Reader(Generic[Value]):
    """Decodes JSON into one type and names the field that is wrong."""

    def __init__(self, kind: type[Value], what: str) -> None:
        """Make the decoder.

        Args:
            kind: the type.
            what: what the document calls it, for errors.
        """
        self._decode = msgspec.json.Decoder(kind).decode
        self._what = what

    def read(self, data: bytes | msgspec.Raw) -> Value:
        """Decode.

        Raises:
            PeerFault: it is not JSON, or a field is not what the schema says; the text names the field.
        """
        try:
            return self._decode(data)
        except msgspec.ValidationError as error:
            raise fault(explain(self._what, error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise not_json(self._what, error) from None


def not_json(what: str, error: Exception) -> PeerFault:
    """The fault of text that cannot be read at all."""
    if isinstance(error, RecursionError):
        return fault(f"{what}: nested too deeply to be read.")
    return fault(f"{what}: not valid JSON ({str(error)[:MAX_TEXT]}).")


def explain(what: str, error: msgspec.ValidationError) -> str:
    """Word a validation error: what, which field, what was expected there."""
    text, found = split_path(error)
    path = f", {found.removeprefix('.')}" if found else ""
    for pattern, words in PATTERN_WORDS.items():
        text = text.replace(f"`str` matching regex {pattern!r}", words)
    text = f"{text[:1].lower()}{text[1:]}"
    return f"{what}{path}: {text}."


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object whose schema refuses properties it does not name."""


def require(condition: bool, text: str) -> None:
    """Raise the fault of invalid data (-4) unless a rule is kept."""
    if not condition:
        raise fault(text)


def require_same(name: str, got: str, expected: str) -> None:
    """A field that must have exactly one value."""
    if got != expected:
        raise fault(f"{name}: {got[:MAX_TEXT]!r} is not {expected[:MAX_TEXT]!r}.")


def require_unique(name: str, values: Sequence[str]) -> None:
    """The schema's unique items."""
    if len(set(values)) != len(values):
        raise fault(f"{name}: every item may be there once only.")
