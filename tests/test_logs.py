"""Log lines: one each, bounded, escaped; for people on a terminal, as JSON elsewhere."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment import logs, metrics
from catchment.config import HIDDEN
from catchment.logs import BURST, MAX_LINE, MAX_TRACEBACK, Flood, JsonFormatter, TextFormatter, bounded, set_up

EVIL = "a\nb\rc\x1b[31md\x00e\x7f\x85\x9b\u2028f\u2029\u202eg\u2066\ud800h"

any_text = st.text(st.characters(codec=None), max_size=80)  # surrogates too


def record(message: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("catchment.net.server", logging.WARNING, "file.py", 1, message, arguments, info)


def raised(text: str) -> ValueError:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


class TestBounded:
    def test_leaves_plain_text_alone(self) -> None:
        assert bounded("Grüße, 世界 😀") == "Grüße, 世界 😀"

    def test_escapes(self) -> None:
        assert bounded("a\nb\x1b[0m") == "a\\x0ab\\x1b[0m"
        assert bounded("\u2028\u202e\ud800") == "\\u2028\\u202e\\ud800"

    @given(any_text)
    def test_is_one_line_that_any_stream_takes(self, text: str) -> None:
        shown = bounded(text)
        shown.encode()
        assert len(shown.splitlines()) <= 1
        assert shown.isprintable() or not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in shown)

    def test_is_cut(self) -> None:
        shown = bounded("x" * 1_000_000)
        assert len(shown) < MAX_LINE + 50
        assert shown.endswith("... (1000000 characters)")
        assert len(bounded("\n" * 1_000_000)) < 4 * MAX_LINE + 50
        assert bounded("x" * MAX_LINE) == "x" * MAX_LINE


class TestFormats:
    def test_text(self) -> None:
        line = TextFormatter().format(record("cut %s", EVIL))
        assert line.isascii()
        assert "\n" not in line
        assert " warning net.server: cut a\\x0ab" in line

    def test_json(self) -> None:
        line = JsonFormatter().format(record("cut %s", EVIL))
        assert "\n" not in line
        said = json.loads(line)
        assert (said["level"], said["part"]) == ("warning", "catchment.net.server")
        assert said["message"] == bounded(f"cut {EVIL}")
        assert isinstance(said["time"], float)

    @given(any_text)
    def test_any_text_goes_through_both(self, text: str) -> None:
        for formatter in (TextFormatter(), JsonFormatter()):
            line = formatter.format(record("%s", text))
            line.encode()
            assert "\n" not in line

    def test_what_an_exception_quotes_is_escaped_too(self) -> None:
        error = raised("peer said \x1b[31m\u2028\ud800\rroot: all is well")
        text = TextFormatter().format(record("failed", error=error))
        assert "Traceback" in text
        assert "ValueError: peer said \\x1b[31m\\u2028\\ud800\\x0droot" in text
        said = json.loads(JsonFormatter().format(record("failed", error=error)))
        assert "\\x1b[31m\\u2028\\ud800" in said["traceback"]

    @pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
    def test_long_tracebacks_are_cut(self, formatter: logging.Formatter) -> None:
        line = formatter.format(record("failed", error=raised("x" * 1_000_000 + "END")))
        assert len(line) < MAX_TRACEBACK + 500
        assert "END" in line


@pytest.fixture
def _logging_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    noisy = {name: logging.getLogger(name).level for name in ("picows", "uvicorn", "asyncio")}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in noisy.items():
        logging.getLogger(name).setLevel(before)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("_logging_restored")
class TestSetUp:
    @pytest.mark.parametrize(
        ("log_format", "stream", "as_json"),
        [
            ("auto", io.StringIO, True),
            ("auto", Terminal, False),
            ("text", io.StringIO, False),
            ("json", Terminal, True),
        ],
    )
    def test_formats(
        self, monkeypatch: pytest.MonkeyPatch, log_format: str, stream: type[io.StringIO], as_json: bool
    ) -> None:
        out = stream()
        monkeypatch.setattr(sys, "stderr", out)
        set_up(log_format, "info")
        logging.getLogger("catchment.test").info("hello %d", 5)
        logging.getLogger("catchment.test").debug("not asked for")
        logging.getLogger("picows").info("every connection")
        (line,) = out.getvalue().splitlines()
        assert line.startswith("{") is as_json
        assert "hello 5" in line

    def test_levels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        out = io.StringIO()
        monkeypatch.setattr(sys, "stderr", out)
        set_up("json", "error")
        logging.getLogger("catchment.test").warning("not asked for")
        logging.getLogger("catchment.test").error("asked for")
        assert [json.loads(line)["message"] for line in out.getvalue().splitlines()] == ["asked for"]

    def test_again_is_not_twice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        out = io.StringIO()
        monkeypatch.setattr(sys, "stderr", out)
        for _ in range(3):
            set_up("text", "info")
        logging.getLogger("catchment.test").info("once")
        assert out.getvalue().count("once") == 1


def test_the_limits_are_in_proportion() -> None:
    assert logs.MAX_TRACEBACK > logs.MAX_LINE


SECRETS = [
    "connect to wss://node/api/v1/ws?apiKey=SWORDFISH&stream=s",
    "ws://host/x?stream=s&sessionToken=SWORDFISH",
    'body {"sessionToken":"SWORDFISH","ok":1}',
    "header Authorization: Bearer SWORDFISH",
    "authorization: token SWORDFISH",
    "https://ann:SWORDFISH@example.org/x",
    "private_key=0xSWORDFISH",
    "password: SWORDFISH",
    "-----BEGIN PRIVATE KEY-----\nSWORDFISH\n-----END PRIVATE KEY-----",
    "-----BEGIN EC PRIVATE KEY-----\nSWORDFISH",
    "tls_key_password='SWORDFISH'",
]


class TestRedacted:
    @pytest.mark.parametrize("text", SECRETS)
    @pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
    def test_no_secret_reaches_a_line(self, text: str, formatter: logging.Formatter) -> None:
        assert "SWORDFISH" not in formatter.format(record("%s", text))
        assert HIDDEN in formatter.format(record("%s", text))
        assert "SWORDFISH" not in formatter.format(record("failed", error=raised(text)))

    @pytest.mark.parametrize("text", ["the key is lost", "tokens: none", "monkey=1 ok", "a: b", "x@y.z", "ws://h:1/p"])
    def test_plain_words_stay(self, text: str) -> None:
        assert bounded(text) == text

    def test_secrets_of_our_own_are_hidden_wherever_they_stand(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(logs, "_hidden", set())
        assert "herring" in bounded("it was herring all along")
        logs.hide(["herring", ""])
        assert bounded("it was herring all along") == f"it was {HIDDEN} all along"

    def test_a_cut_leaves_no_half_of_one(self) -> None:
        for start in range(MAX_LINE - 30, MAX_LINE + 1):
            shown = bounded("x" * start + " token=SWORDFISH" + "y" * MAX_LINE)
            assert "SWO" not in shown

    def test_what_is_long_is_searched_in_bounded_time(self) -> None:
        bounded("key" * 1_000_000 + "=" * 1_000_000)


class TestFlood:
    def setup_method(self) -> None:
        self.now = 0.0
        self.flood = Flood(burst=3, per_second=1, clock=lambda: self.now)

    def record(self, line: int = 1) -> logging.LogRecord:
        return logging.LogRecord("catchment.x", logging.WARNING, "file.py", line, "cut %s", ("someone",), None)

    def test_each_place_has_a_burst_of_its_own(self) -> None:
        assert [self.flood.filter(self.record()) for _ in range(5)] == [True, True, True, False, False]
        assert self.flood.filter(self.record(line=2))

    def test_it_comes_back_and_tells_how_many_were_left_out(self) -> None:
        before = metrics.REGISTRY.get_sample_value("catchment_log_records_dropped_total")
        for _ in range(10):
            self.flood.filter(self.record())
        self.now = 1.0
        again = self.record()
        assert self.flood.filter(again)
        assert TextFormatter().format(again).endswith("cut someone (7 more like this were left out)")
        assert json.loads(JsonFormatter().format(again))["message"].endswith("(7 more like this were left out)")
        after = metrics.REGISTRY.get_sample_value("catchment_log_records_dropped_total")
        assert before is not None
        assert after == before + 7
        self.now = 2.0
        assert self.flood.filter(once := self.record())
        assert TextFormatter().format(once).endswith("cut someone")

    def test_an_idle_hour_saves_no_more_than_a_burst(self) -> None:
        self.flood.filter(self.record())
        self.now = 3600.0
        assert sum(self.flood.filter(self.record()) for _ in range(100)) == 3

    @pytest.mark.usefixtures("_logging_restored")
    def test_it_is_in_force(self, monkeypatch: pytest.MonkeyPatch) -> None:
        out = io.StringIO()
        monkeypatch.setattr(sys, "stderr", out)
        set_up("text", "info")
        for _ in range(1000):
            logging.getLogger("catchment.test").warning("rude")
        assert BURST <= out.getvalue().count("rude") < 2 * BURST
