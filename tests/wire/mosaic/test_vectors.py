"""The Mosaic vectors of `tests/vectors`: they are what their script makes, and cover every verdict."""

from __future__ import annotations

import runpy
from typing import Any

from .conftest import FOLDER, own


def test_the_files_are_what_the_script_makes() -> None:
    script: dict[str, Any] = runpy.run_path(str(FOLDER / "make_mosaic.py"))
    for name, make in script["FILES"].items():
        assert (FOLDER / name).read_text(encoding="utf-8") == script["render"](make()), name


def test_names_are_used_once_and_verdicts_often_enough() -> None:
    for name in ("mosaic_signatures.json", "mosaic_records.json", "mosaic_filters.json"):
        cases = own(name)
        assert len({case["name"] for case in cases}) == len(cases)
    verdicts = [case["verdict"] for case in own("mosaic_records.json")]
    for verdict, least in (("ok", 15), ("bad_id", 4), ("bad_signature", 5), ("INVALID", 15), ("TOO_LARGE", 2)):
        assert verdicts.count(verdict) >= least, verdict
