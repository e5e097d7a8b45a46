"""`scripts/reference.py` as a module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PATH = Path(__file__).parents[1] / "scripts" / "reference.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("catchment_reference", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


reference = _load()
