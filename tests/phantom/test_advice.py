"""What fires on published programs and recordings, against what reading their code says
(tests/programs/advice.toml): nothing else may.
"""

from __future__ import annotations

import json
import lzma
import shlex
import subprocess
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ullage.api.explain import explain_file
from ullage.explain.rules.registry import RULES

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]
TESTS = Path(__file__).parents[1]
PLACES = (TESTS.parent / "examples", TESTS / "programs")
PROGRAMS = tomllib.loads((TESTS / "programs" / "advice.toml").read_text("utf-8"))["program"]
RECORDINGS = [one for one in PROGRAMS if "recording" in one]
RUNS = [one for one in PROGRAMS if "run" in one]
_INSTALLED = (
    "import importlib.metadata as m, json; print(json.dumps([d.name for d in m.distributions()]))"
)


def name_of(one: dict[str, Any]) -> str:
    """How a test calls it."""
    return str(one.get("recording") or f"{one['run']} on {one.get('gpu', 'h100-80gb')}")


def codes(path: Path) -> set[str]:
    """What is found in a snapshot."""
    return {one.rule.code for one in explain_file(path).findings}


@cache
def installed(python: Path) -> frozenset[str]:
    """The packages of an environment."""
    command = [str(python), "-c", _INSTALLED]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return frozenset(name.lower() for name in json.loads(done.stdout))


@pytest.mark.nightly
@pytest.mark.parametrize("one", RECORDINGS, ids=name_of)
def test_on_a_recording_only_what_its_code_deserves_fires(
    one: dict[str, Any], tmp_path: Path
) -> None:
    packed = TESTS / "golden" / "snapshots" / f"{one['recording']}.pickle.xz"
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    assert codes(path) == set(one.get("fires", {}))


@pytest.mark.nightly
@pytest.mark.parametrize("one", RUNS, ids=name_of)
def test_on_a_program_only_what_its_code_deserves_fires(
    run_program: RunProgram, thin_python: Path, one: dict[str, Any]
) -> None:
    missing = set(one.get("packages", ())) - installed(thin_python)
    if missing:
        pytest.skip(f"not installed: {', '.join(sorted(missing))}")
    name, *flags = shlex.split(one["run"])
    outcome = run_program(name, *flags, gpu=one.get("gpu", "h100-80gb"))
    assert outcome.document["verdict"] != "failed", outcome.stderr
    assert codes(outcome.directory / "snapshot.pickle") == set(one.get("fires", {}))


def test_every_listed_program_is_there_once_and_each_firing_has_a_reason() -> None:
    names = [name_of(one) for one in PROGRAMS]
    assert len(names) == len(set(names)) >= 36
    recordings = {path.name.partition(".")[0] for path in (TESTS / "golden/snapshots").glob("*.xz")}
    assert {one["recording"] for one in RECORDINGS} == recordings
    for one in RUNS:
        assert any((place / one["run"].split()[0]).is_file() for place in PLACES), one["run"]
    for one in PROGRAMS:
        for code, reason in one.get("fires", {}).items():
            assert code in RULES and len(reason) > 20
