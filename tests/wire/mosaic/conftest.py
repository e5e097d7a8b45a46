"""Vectors for Mosaic: the project's own, and those of `../shared/vectors` where they are (see `tests/conftest.py`)."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ...conftest import shared_vectors

FOLDER = Path(__file__).parents[2] / "vectors"
Case = dict[str, Any]


def own(name: str) -> list[Case]:
    """A file of our own vectors."""
    cases: list[Case] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return cases


def named(name: str) -> Callable[[Any], Iterator[tuple[str, Case]]]:
    def read(vectors: Any) -> Iterator[tuple[str, Case]]:
        for number, case in enumerate(vectors[name]):
            yield f"{number}-{case.get('name', '')}", case

    return read


def _frames(vectors: Any) -> Iterator[tuple[str, tuple[str, bytes]]]:
    for name, layout in (("frames_v09dev", "B"), ("frames_v09dev_derived", "B"), ("frames_v080_seed_derived", "A")):
        for case in vectors[name]:
            yield f"{layout}-{case['name']}", (layout, bytes.fromhex(case["hex"]))


def _hello_auths(vectors: Any) -> Iterator[tuple[str, Case]]:
    cases = vectors["hello_auth"]
    for case in cases["derived"]:
        yield case["nonce"], case | {"frame": case["frame_v09dev_hex"]}
    yield "captured", cases["captured"] | {"frame": cases["captured"]["frame_hex"]}


SHARED: dict[str, Callable[[Any], Iterator[tuple[str, Any]]]] = {
    "shared_signing": named("signing"),
    "shared_record": named("records"),
    "shared_negative": named("records_negative"),
    "shared_frame": _frames,
    "shared_filter": named("filters"),
    "shared_printable": named("printables"),
    "shared_time": lambda vectors: named("cases")(vectors["timestamps"]),
    "shared_leaps": lambda vectors: iter([("leaps", vectors["timestamps"]["ntp_leap_table"])]),
    "shared_hello_auth": _hello_auths,
    "shared_tagset": lambda vectors: iter([("tagset", vectors["tagset"])]),
    "shared_bootstrap": lambda vectors: (
        (case["text"][:20], case["text"]) for case in vectors["bootstraps"]["strings"]
    ),
    "shared_item": lambda vectors: ((case["salt"], case) for case in vectors["bootstraps"]["bep44_derived"]),
    "shared_encrypted": lambda vectors: iter([("secret", vectors["encrypted_secret_key_derived"])]),
}


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> list[pytest.Item] | None:
    """Leave out tests of shared vectors where there are none."""
    if name.startswith("test_") and inspect.isfunction(obj) and shared_vectors("mosaic.json") is None:
        wanted = SHARED.keys() & inspect.signature(obj).parameters.keys()
        return [] if wanted else None
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once for each shared case it asks for."""
    for name in SHARED.keys() & set(metafunc.fixturenames):
        cases = list(SHARED[name](shared_vectors("mosaic.json")))
        metafunc.parametrize(name, [case for _, case in cases], ids=[label for label, _ in cases])
