"""What tests share: the interpreter of the environment that programs run in."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from hypothesis import HealthCheck, settings
from tests.rotation import describe_turn
from tests.tiers import (  # noqa: F401 - hooks of this conftest
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
)

from ullage.log.record_schema import ROWS, RecordFields

# How fast a machine is says nothing about the code: others may use it too.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# A background job of a shell, or nohup, hands these down ignored, and what the tests start would
# not hear them.
if threading.current_thread() is threading.main_thread():
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            is_interrupt = number is signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)

ROOT = Path(__file__).parent.parent


def pytest_report_header() -> list[str]:
    """Which share of the cases of the long tables this turn has."""
    return describe_turn()


@pytest.fixture(scope="session")
def thin_python() -> Path:
    """The Python of a thin environment: $ULLAGE_TEST_PYTHON, or the one that `make test` makes."""
    named = os.environ.get("ULLAGE_TEST_PYTHON")
    # Not resolved: a virtual environment's python is a link to the one that it was made with.
    python = (ROOT / named) if named else ROOT / ".envs" / "torch-newest" / "bin" / "python"
    if not python.exists():
        message = f"no environment with PyTorch's CUDA build at {python}; `make test` makes one"
        # Who named one wants these tests run.
        if named:
            pytest.fail(message)
        pytest.skip(message)
    return python


def differences(value: Any, kind: Any, path: str) -> Iterator[str]:
    """Where the keys of a dict are not those of its type, and so on in all that it holds."""
    if get_origin(kind) is list:
        for entry in value:
            yield from differences(entry, get_args(kind)[0], f"{path}[]")
    elif is_typeddict(kind):
        missing = kind.__required_keys__ - set(value)
        unknown = set(value) - set(kind.__annotations__)
        yield from (f"{path} lacks {key}" for key in sorted(missing))
        yield from (f"{path} has {key}" for key in sorted(unknown))
        hints = get_type_hints(kind)
        for key in set(value) & set(hints):
            yield from differences(value[key], hints[key], f"{path}.{key}")


def rows_of(fields: dict[str, Any], name: str) -> list[Any]:
    """The rows of a name, which only records on a real GPU may have."""
    measured = fields.get("measured", {})
    holders = (fields, measured, measured.get("pressure", {}))
    rows: list[Any] = next((holder[name] for holder in holders if name in holder), [])
    return rows


def differences_from_schema(fields: dict[str, Any]) -> list[str]:
    """What a record has, or lacks, against its schema."""
    wrong_rows = [
        f"a row of {name} has {len(row)} values, not {len(names)}"
        for name, names in ROWS.items()
        for row in rows_of(fields, name)
        if len(row) != len(names)
    ]
    return [*differences(fields, RecordFields, "record"), *wrong_rows]


@pytest.fixture(scope="session")
def schema_differences() -> Callable[[dict[str, Any]], list[str]]:
    """`differences_from_schema`."""
    return differences_from_schema
