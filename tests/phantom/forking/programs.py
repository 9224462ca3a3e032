"""What is imported before the programs of the tests are forked."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any


def prepare(settings: dict[str, Any]) -> None:
    """Imports torch; on the phantom, what watches it too."""
    with contextlib.suppress(ImportError):
        importlib.import_module("sympy")  # which whatever compiles or shards imports; not of torch
    if "ULLAGE_PHANTOM" not in os.environ:
        importlib.import_module("torch._dynamo")  # which every optimizer imports
        return
    package = Path(settings["package"])
    spec = importlib.util.spec_from_file_location(
        "ullage", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None and spec.loader is not None
    sys.modules["ullage"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["ullage"])
    from ullage.players.phantom.bootstrap import stubs_for_libraries

    with stubs_for_libraries():
        importlib.import_module("torch")
    importlib.import_module("ullage.players.inside.entrances.simulated_gpu")
