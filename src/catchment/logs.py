"""Logging: for people on a terminal, as JSON lines elsewhere; always bounded and escaped.

What peers send can end up in a log line; control characters are escaped and lines are cut, so that nobody writes
lines of their own or fills the disk with one (facts/reliability.md, "Log injection").
"""

from __future__ import annotations

import logging
import sys
from typing import Final

import msgspec

MAX_LINE: Final = 2000

MAX_TRACEBACK: Final = 10 * MAX_LINE

_ESCAPES: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    # Line and paragraph separators, marks that turn the direction of what follows, and surrogates, which no UTF-8
    # stream takes.
    code: f"\\u{code:04x}"
    for code in (*range(0x200E, 0x2010), *range(0x2028, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000))
}
_ESCAPES_IN_BLOCK: Final = {code: escape for code, escape in _ESCAPES.items() if code != ord("\n")}


def escaped(text: str) -> str:
    """Text without anything a terminal would act on."""
    return text.translate(_ESCAPES)


def bounded(text: str) -> str:
    """Text fit for one log line."""
    if len(text) > MAX_LINE:
        text = f"{text[:MAX_LINE]}... ({len(text)} characters)"
    return escaped(text)


def _traceback(text: str) -> str:
    """A traceback keeps its lines, and its end when it is long; what an exception quotes is escaped like any text."""
    return text[-MAX_TRACEBACK:].translate(_ESCAPES_IN_BLOCK)


class TextFormatter(logging.Formatter):
    """Time, level, part and message, then a traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        line = (
            f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():7} "
            f"{record.name.removeprefix('catchment.')}: {bounded(record.getMessage())}"
        )
        if record.exc_info:
            line += "\n" + _traceback(self.formatException(record.exc_info))
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        fields = {
            "time": record.created,
            "level": record.levelname.lower(),
            "part": record.name,
            "message": bounded(record.getMessage()),
        }
        if record.exc_info:
            fields["traceback"] = _traceback(self.formatException(record.exc_info))
        return msgspec.json.encode(fields).decode()


def set_up(log_format: str, level: str) -> None:
    """Log to standard error in the given format ("auto" looks whether that is a terminal)."""
    handler = logging.StreamHandler(sys.stderr)
    as_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    # uvicorn tells of every connection at info; picows tells at error what a rude peer did. What breaks in our own
    # code is logged by it.
    for noisy, least in (("picows", logging.CRITICAL), ("uvicorn", logging.WARNING), ("asyncio", logging.WARNING)):
        logging.getLogger(noisy).setLevel(least)
