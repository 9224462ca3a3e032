"""Prints as JSON which of the private names that ullage uses the torch of this interpreter lacks;
the first argument is where ullage is. All modules on the way are imported, which takes seconds.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import sys
from types import ModuleType
from typing import Any

sys.path.insert(0, sys.argv[1])

from ullage.players.inside.torch_internals import INTERNALS


def exists(path: str) -> bool:
    """Whether a path leads to a module, to an attribute, or to what a class or module sets."""
    owner: Any = importlib.import_module("torch")
    *owners, last = path.split(".")[1:]
    for name in owners:
        if not hasattr(owner, name) and is_module(owner, name):
            importlib.import_module(f"{owner.__name__}.{name}")
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
    # A module at the end is not executed: it may need packages that are not there.
    return hasattr(owner, last) or is_module(owner, last) or sets(owner, last)


def is_module(package: Any, name: str) -> bool:
    is_package = isinstance(package, ModuleType) and hasattr(package, "__path__")
    return is_package and importlib.util.find_spec(f"{package.__name__}.{name}") is not None


def sets(owner: Any, name: str) -> bool:
    """Whether the source of a class or module has a name that only its objects have."""
    try:
        return name in inspect.getsource(owner)
    except (OSError, TypeError):
        return False


print(json.dumps([internal.path for internal in INTERNALS if not exists(internal.path)]))
