"""Shared by all suites: vectors, messages to send, and how hypothesis runs.

The project's own vectors lie in `tests/vectors` and test every rule. Those in `../shared/vectors` beside the checkout
were made by other people's software: where they are, tests that take one of `SHARED` as an argument run once per case;
where they are not, those tests do not exist.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import pytest

from catchment.crypto import ethereum
from catchment.wire.streamr import fields, message

ROOT = Path(__file__).parents[1]
Case = dict[str, Any]

# No deadline: how fast a machine is proves nothing about the code.
hypothesis.settings.register_profile("catchment", deadline=None, max_examples=150)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=25)
hypothesis.settings.load_profile("catchment")

SLOW = (
    "bench/test_run.py",
    "conformance/",
    "docs/test_blocks.py",
    "docs/test_site.py",
    "net/test_cli.py",
    "net/test_doctor.py",
    "net/test_popstellar_peers.py",
    "typing/",
)
"""Suites that start many programs or wait for them; `make check` leaves them to `make test`, as it does Spark."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow suites."""
    for item in items:
        if item.path.relative_to(ROOT / "tests").as_posix().startswith(SLOW):
            item.add_marker(pytest.mark.slow)


@cache
def shared_vectors(name: str) -> Any:
    """A file of `../shared/vectors`, or None in a clone that stands alone."""
    path = ROOT.parent / "shared" / "vectors" / name
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _raw_signatures(vectors: Any) -> Iterator[tuple[str, Case]]:
    for number, case in enumerate(vectors["signatures"]["raw"]):
        yield f"raw-{number}", case
    yield "login", vectors["login"] | {"payload": vectors["login"]["challenge"]}


def _signed_messages(vectors: Any) -> Iterator[tuple[str, Case]]:
    """Messages with what is signed in them; one case for each version they are given in."""
    for number, case in enumerate(vectors["signatures"]["messages"]):
        if isinstance(case["serialized"], dict):
            for version, serialized in case["serialized"].items():
                yield f"{case['name']}-{version}", case | {"serialized": serialized, "version": int(version)}
        else:
            yield f"published-{number}", case | {"version": 31}


def _control_frames(vectors: Any) -> Iterator[tuple[str, tuple[int, str]]]:
    """Frames of every control version, with that version."""
    for file in ("control_v0_v1", "control_v1_v2"):
        for name, versions in vectors[file]["cases"].items():
            for pair, frame in versions.items():
                yield f"{file[8:]}-{name}-{pair}", (int(pair.split("/")[0]), frame)


def _legacy_requests(vectors: Any) -> Iterator[tuple[str, Case]]:
    for case in vectors["control_v0_requests"]["cases"]:
        yield case["class"], case


def _conversions(vectors: Any) -> Iterator[tuple[str, tuple[str, int, str]]]:
    for version, case in vectors["message_conversion"]["cases"].items():
        for name, converted in case.items():
            if name != "in":
                yield f"{version}-{name}", (case["in"], int(name.removeprefix("to")), converted)


def _captured_frames(vectors: Any) -> Iterator[tuple[str, str]]:
    for number, frame in enumerate(vectors["capture_key_exchange"]["frames"]):
        yield f"frame-{number}", frame


def _group_key_contents(vectors: Any) -> Iterator[tuple[str, tuple[str, str]]]:
    for name, content in vectors["groupkey"].items():
        if name != "source":
            yield name, (name, content)


def _pop(*names: str) -> Callable[[Any], Iterator[tuple[str, Any]]]:
    """Cases of lists of the PoPStellar vectors."""

    def cases(vectors: Any) -> Iterator[tuple[str, Any]]:
        for name in names:
            for number, case in enumerate(vectors[name]):
                yield f"{name}-{number}", case

    return cases


SHARED: dict[str, Callable[[Any], Iterator[tuple[str, Any]]]] = {
    "shared_raw_signature": _raw_signatures,
    "shared_signed_message": _signed_messages,
    "shared_control_frame": _control_frames,
    "shared_captured_frame": _captured_frames,
    "shared_legacy_request": _legacy_requests,
    "shared_conversion": _conversions,
    "shared_partitioner": lambda vectors: iter([("partitioner", vectors["partitioner"])]),
    "shared_group_key_content": _group_key_contents,
    "shared_aes": lambda vectors: iter([("aes", vectors["aes"])]),
    "shared_rsa": lambda vectors: iter([("rsa", vectors["rsa"])]),
    "shared_pop_hash": _pop("hashlen"),
    "shared_pop_id": _pop("ids"),
    "shared_pop_key_pair": _pop("keypairs"),
    "shared_pop_message": _pop("messages_verified", "messages_illustrative_only"),
    "shared_pop_coin": _pop("coin"),
}


def _file_of(name: str) -> str:
    """Which file the cases of a name are in."""
    return "popstellar.json" if name.startswith("shared_pop_") else "streamr.json"


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> list[pytest.Item] | None:
    """Leave out tests of shared vectors where there are none."""
    if name.startswith("test_") and inspect.isfunction(obj):
        wanted = SHARED.keys() & inspect.signature(obj).parameters.keys()
        return [] if any(shared_vectors(_file_of(each)) is None for each in wanted) else None
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once for each shared case it asks for."""
    for name in SHARED.keys() & set(metafunc.fixturenames):
        cases = list(SHARED[name](shared_vectors(_file_of(name))))
        metafunc.parametrize(name, [case for _, case in cases], ids=[label for label, _ in cases])


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    """Each test starts without remembered public keys."""
    ethereum._known_keys.clear()


@pytest.fixture(scope="session")
def signer() -> ethereum.Signer:
    """A publisher."""
    return ethereum.Signer(bytes(31) + b"\x07")


MakeMessage = Callable[..., bytes]


@pytest.fixture
def make_message(signer: ethereum.Signer) -> MakeMessage:
    """Makes a message 32 as bytes, signed unless `sign=False`; keywords are those of StreamMessage and MessageID."""

    def make(*, sign: bool = True, forge: bool = False, **changes: Any) -> bytes:
        values: dict[str, Any] = {
            "stream_id": "river",
            "stream_partition": 0,
            "timestamp": 1_700_000_000_000,
            "sequence_number": 0,
            "publisher_id": signer.address if sign else "visitor",
            "msg_chain_id": "chain",
            "prev_msg_ref": None,
            "message_type": message.MessageType.STREAM_MESSAGE,
            "encryption_type": message.EncryptionType.NONE,
            "group_key_id": None,
            "content": '{"level":3}',
            "new_group_key": None,
        } | changes
        names = fields.MessageID.__struct_fields__
        unsigned = message.StreamMessage(
            version=32,
            msg_id=fields.MessageID(**{name: values.pop(name) for name in names}),
            content_type=message.ContentType.JSON,
            signature_type=message.SignatureType.ETH if sign else message.SignatureType.NONE,
            signature=None,
            **values,
        )
        if not sign:
            return message.encode(unsigned)
        payload = message.signed_payload(unsigned) + (b"!" if forge else b"")
        return message.encode(msgspec.structs.replace(unsigned, signature=signer.sign(payload)))

    return make
