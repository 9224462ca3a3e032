"""What a run costs beside the program: Python's collector, and the modules that a verb loads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]

# What a verb says at the terminal needs these packages, and none of pages, plots, other verbs'
# answers, searches or plans; where no ullage.toml is found, nothing that reads one.
OF_ALL = {
    "answers", "cli", "facts.gpus", "ground.config.project_file", "ground.errors", "ground.files",
    "ground.native", "ground.printable", "ground.protocol", "ground.units", "ground.version",
    "verbs.command_line",
}  # fmt: skip
MAY_LOAD = {
    "run": OF_ALL | {
        "clock", "explain", "ground.parsing", "ground.programs", "log", "players.inside",
        "players.phantom", "search.runs", "verbs.run.command", "verbs.run.function",
        "verbs.run.options", "verbs.run.text", "verbs.run.text_parts", "verbs.text", "verbs.views",
    },
    "estimate": OF_ALL | {
        "clock", "facts.families", "ground.parsing", "log", "players.eager", "verbs.document",
        "verbs.estimate", "verbs.text", "verbs.views.palette",
    },
    "--help": {"cli", "ground.errors", "ground.version", "verbs.command_line.streams"},
}  # fmt: skip
# Their snapshots are not read, and nothing is played again.
READS_TRACES = {"explain.whatif", "log.plain", "log.replay", "log.snapshot"}
LIBRARIES = {"run": {"click", "numpy", "rich"}, "estimate": {"click", "rich"}, "--help": {"click"}}
COUNT = """
import json, sys
from ullage.cli import run_cli
run_cli(sys.argv[1:])
print("\\n" + json.dumps({
    name: getattr(module, "__file__", None) for name, module in sys.modules.items()
}))
"""


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="there it collects in parts")
def test_torch_is_set_aside_until_the_collector_looks_through_all(
    run_program: Callable[..., Any], tmp_path: Path
) -> None:
    outcome = run_program("collector.py", str(tmp_path))
    num_before, num_young, num_after, thresholds = json.loads(outcome.stderr.splitlines()[0])
    assert num_before < 20_000  # the program's own, and the recorder's
    assert num_after - num_young > 100_000
    young, middle, old = thresholds
    assert 0.9 < num_young / (young * (middle + 1) * (old + 1)) < 1.1
    assert (tmp_path / "early").read_text() == (tmp_path / "late").read_text() == "whole"


@pytest.mark.parametrize("verb", MAY_LOAD)
def test_a_verb_loads_what_it_needs(verb: str, thin_python: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import torch\n")
    words = {
        "run": ["--gpu", "t4", "--python", str(thin_python), "--", "program.py"],
        "estimate": ["llama-3.1-8b", "--gpu", "h100-80gb"],
        "--help": [],
    }[verb]
    command = [sys.executable, "-c", COUNT, verb, *words]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    loaded: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    ours = {name.removeprefix("ullage.") for name in loaded if name.startswith("ullage.")}
    bases = {
        base
        for name in MAY_LOAD[verb]
        for base in (name, *(".".join(name.split(".")[:count]) for count in (1, 2)))
    }
    extra = {
        name for name in ours - bases
        if not any(name.startswith(f"{package}.") for package in MAY_LOAD[verb])
    }  # fmt: skip
    assert not extra
    assert not ours & READS_TRACES
    installed = {
        name.partition(".")[0] for name, file in loaded.items() if "site-packages" in str(file)
    }
    assert {name for name in installed if not name.startswith("_")} <= LIBRARIES[verb]
