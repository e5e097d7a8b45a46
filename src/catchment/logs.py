"""Logging: for people on a terminal, as JSON lines elsewhere; always bounded, escaped and without secrets.

What peers send can end up in a log line. Control characters are escaped and lines are cut, so that nobody writes lines
of their own or fills the disk with one; each place in the code logs a few records a second at most, so that nobody
fills it with many (facts/reliability.md, "Log injection"). Tokens, passwords and keys are taken out ("Auth-token
leakage").
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from catchment import metrics
from catchment.config import HIDDEN

MAX_LINE: Final = 2000

MAX_TRACEBACK: Final = 10 * MAX_LINE

_ESCAPES: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    # Line and paragraph separators, marks that turn the direction of what follows, and surrogates, which no UTF-8
    # stream takes.
    code: f"\\u{code:04x}"
    for code in (*range(0x200E, 0x2010), *range(0x2028, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000))
}
_ESCAPES_IN_BLOCK: Final = {code: escape for code, escape in _ESCAPES.items() if code != ord("\n")}

BURST: Final = 20
PER_SECOND: Final = 2.0
"""Records that one place in the code may log at once, and in the long run."""

PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL
)
"""In PEM form, also when its end is cut off."""

_SECRETS: Final = (
    # A named value in a query, a form, JSON or Python: apiKey, session_token, tls-key-password, ... "monkey" is none.
    (
        re.compile(
            r"""((?:(?<![A-Za-z0-9])|(?<=[a-z])(?=[A-Z]))(?i:apikey|key|token|password|passphrase|secret))"""
            r"""(["']?\s*[=:]\s*["']?)[^\s"'&;,)}\]]+"""
        ),
        rf"\1\2{HIDDEN}",
    ),
    (re.compile(r"\b(bearer|basic|token)\s+[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1 {HIDDEN}"),
    (re.compile(r"(\w://)[^\s/@]+@"), rf"\1{HIDDEN}@"),
    (PRIVATE_KEY, HIDDEN),
)

_hidden: set[str] = set()
"""Secrets of this process's own settings."""


def hide(secrets: Iterable[str]) -> None:
    """Take these out of everything that is logged from now on."""
    _hidden.update(secret for secret in secrets if secret)


def redacted(text: str) -> str:
    """Text without what looks like a secret, and without the secrets of our own settings."""
    for secret in _hidden:
        text = text.replace(secret, HIDDEN)
    for pattern, put in _SECRETS:
        text = pattern.sub(put, text)
    return text


def escaped(text: str) -> str:
    """Text without anything a terminal would act on."""
    return text.translate(_ESCAPES)


def bounded(text: str) -> str:
    """Text fit for one log line."""
    size = len(text)
    # Redacted before it is cut, so that no half of a secret is left; but what is far too long is not worth the search.
    text = redacted(text[: 2 * MAX_LINE])
    if size > MAX_LINE:
        text = f"{text[:MAX_LINE]}... ({size} characters)"
    return escaped(text)


def _traceback(text: str) -> str:
    """A traceback keeps its lines, and its end when it is long; what an exception quotes is escaped like any text."""
    return redacted(text[-MAX_TRACEBACK:]).translate(_ESCAPES_IN_BLOCK)


class Flood(logging.Filter):
    """Lets each place in the code log a few records a second; the next one tells how many were left out."""

    def __init__(
        self, *, burst: float = BURST, per_second: float = PER_SECOND, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._burst = burst
        self._per_second = per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._places: dict[tuple[str, int], tuple[float, float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this record is written."""
        now = self._clock()
        place = (record.pathname, record.lineno)
        with self._lock:
            left, since, dropped = self._places.get(place, (self._burst, now, 0))
            left = min(self._burst, left + (now - since) * self._per_second)
            if left < 1:
                self._places[place] = (left, now, dropped + 1)
                metrics.LOG_DROPPED.inc()
                return False
            self._places[place] = (left - 1, now, 0)
        record.left_out = dropped
        return True


def _told(record: logging.LogRecord) -> str:
    """The message, and how many like it were left out before it."""
    left_out = getattr(record, "left_out", 0)
    return bounded(record.getMessage()) + (f" ({left_out} more like this were left out)" if left_out else "")


class TextFormatter(logging.Formatter):
    """Time, level, part and message, then a traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        line = (
            f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():7} "
            f"{record.name.removeprefix('catchment.')}: {_told(record)}"
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
            "message": _told(record),
        }
        if record.exc_info:
            fields["traceback"] = _traceback(self.formatException(record.exc_info))
        return msgspec.json.encode(fields).decode()


def set_up(log_format: str, level: str) -> None:
    """Log to standard error in the given format ("auto" looks whether that is a terminal)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(Flood())
    as_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    # uvicorn tells of every connection at info; picows tells at error what a rude peer did. What breaks in our own
    # code is logged by it.
    for noisy, least in (("picows", logging.CRITICAL), ("uvicorn", logging.WARNING), ("asyncio", logging.WARNING)):
        logging.getLogger(noisy).setLevel(least)
