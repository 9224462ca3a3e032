"""`ullage doctor`: what a run would find here; and the completion of the shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ullage.ground.errors import EnvironmentProblem
from ullage.players.phantom import torch_build
from ullage.verbs.doctor import command as doctor
from ullage.verbs.doctor.command import doctor_command

MAIN = "from ullage.cli import main; main()"


def diagnose(*words: str) -> tuple[int, dict[str, object]]:
    """The exit code, and the document."""
    result = CliRunner().invoke(doctor_command, [*words, "--json"], standalone_mode=False)
    return int(result.return_value), json.loads(result.stdout)


@pytest.mark.phantom
def test_a_run_that_would_start_is_fine(thin_python: Path) -> None:
    code, document = diagnose("--python", str(thin_python))
    assert (code, document["refusal"]) == (0, None)
    assert str(document["torch"]).startswith("2.")


def test_a_run_that_would_be_refused_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_build, "_own_torch", lambda: None)
    code, document = diagnose()
    assert (code, document["torch"]) == (1, None)
    with pytest.raises(EnvironmentProblem) as refused:
        torch_build.find_torch(sys.executable)
    assert document["refusal"] == str(refused.value)
    shown = CliRunner().invoke(doctor_command, []).stdout
    assert shown.splitlines()[-1] == f"run     {refused.value}"


def test_the_document_has_the_fields_and_types_of_its_schema() -> None:
    schema = json.loads(CliRunner().invoke(doctor_command, ["--schema"]).stdout)
    _, document = diagnose()
    assert [*document] == schema["required"] == [*schema["properties"]]
    assert document["schema"] == schema["properties"]["schema"]["const"]
    kinds = {"string": str, "null": type(None), "array": list}
    for name, value in document.items():
        types = schema["properties"][name].get("type", "string")
        assert isinstance(value, tuple(kinds[one] for one in [*types]) if isinstance(types, list)
                          else kinds[types])  # fmt: skip


def test_parts_whose_packages_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "highspy" else name)
    assert diagnose()[1]["extras"] == ["fit"]
    assert "not installed: ullage[fit]" in CliRunner().invoke(doctor_command, []).stdout


def test_gpus_and_the_driver_are_those_of_nvml(tmp_path: Path) -> None:
    """Here of a machine of simulated GPUs."""
    words = ["nvml", str(tmp_path / "node"), "--gpu", "a100-80gb", "--gpus", "2", "--"]
    command = [sys.executable, "-c", MAIN, *words, sys.executable, "-c", MAIN, "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    document = json.loads(done.stdout)
    assert document["gpus"] == ["NVIDIA A100-SXM4-80GB"] * 2
    assert document["driver"]


@pytest.mark.parametrize(
    ("typed", "offered"), [("ullage doc", "doctor"), ("ullage run --sna", "--snapshot")]
)
def test_the_shell_completes_verbs_and_options(typed: str, offered: str) -> None:
    variables = {
        "_ULLAGE_COMPLETE": "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", MAIN], env={**os.environ, **variables},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"plain,{offered}" in done.stdout.splitlines()
