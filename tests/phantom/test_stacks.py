"""Popular stacks run unmodified, and what ullage says of them is what they say of themselves.

The list is tests/programs/stacks/stacks.toml. A stack that the environment lacks is skipped:
`python -m benchmarks.stacks` makes environments that hold all of them.
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ullage.facts.families.builtin import load_models

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

MIB = 2**20
TIMEOUT_S = 1200  # of those that compile, and try many kernels
STACKS = Path(__file__).parents[1] / "programs" / "stacks"
COUNTS = Path(__file__).parents[1] / "unit" / "estimate" / "peft_counts.json"
ALL = tomllib.loads((STACKS / "stacks.toml").read_text(encoding="utf-8"))["stack"]
KEYS = {"name", "packages", "run", "options", "figures", "says", "refused", "nightly"}


def parameters(*, figures: bool | None = None, refused: bool = False) -> list[Any]:
    """The stacks of one sort, as parameters of a test."""
    return [
        pytest.param(
            stack, id=stack["name"], marks=pytest.mark.nightly if stack.get("nightly") else ()
        )
        for stack in ALL
        if ("refused" in stack) is refused and figures in (None, stack.get("figures", True))
    ]


@pytest.fixture(scope="module")
def installed(thin_python: Path) -> set[str]:
    """The packages of the environment, by their normalised names."""
    code = (
        "import importlib.metadata as m, json; "
        "print(json.dumps([d.name for d in m.distributions() if d.files and len(d.files) > 4]))"
    )
    said = subprocess.run([str(thin_python), "-c", code], check=True, capture_output=True)
    return {re.sub(r"[-_.]+", "-", name).lower() for name in json.loads(said.stdout)}


@pytest.fixture
def run_stack(run_program: RunProgram, installed: set[str]) -> RunProgram:
    """Runs a stack, on a `turn`; skips what is not installed."""

    def run(stack: dict[str, Any], turn: int = 0) -> Any:
        missing = [package for package in stack["packages"] if package not in installed]
        if missing:
            pytest.skip(f"not in the environment: {', '.join(missing)}")
        name, *flags = stack["run"].split()
        options = tuple(stack.get("options", ()))
        timeout_s = TIMEOUT_S if stack.get("nightly") else 120
        return run_program(
            f"stacks/{name}", *flags, options=options, turn=turn, timeout_s=timeout_s
        )

    return run


def busiest(outcome: Any) -> dict[str, Any]:
    """The device as the process saw it that held the most: SGLang's first process holds nothing."""
    devices: list[dict[str, Any]] = outcome.document["devices"]
    return max(devices, key=lambda device: device["peak_allocated_bytes"])


@pytest.mark.slow(
    only=(
        "in the manner of timm's train script",
        "transformers Trainer, SFT, checkpointing",
    )
)
@pytest.mark.parametrize("stack", parameters())
def test_a_stack_runs_and_its_memory_has_owners(
    run_stack: RunProgram, stack: dict[str, Any]
) -> None:
    outcome = run_stack(stack)
    assert outcome.document["verdict"] == "fits", outcome.stderr[-3000:]
    assert stack.get("says", "") in outcome.stderr
    device = busiest(outcome)
    at_peak = device["at_peak"]
    assert sum(at_peak.values()) == device["peak_allocated_bytes"] > 0
    if device["steps"]:  # else nothing says what a block is for
        assert at_peak["unattributed"] < 0.05 * device["peak_allocated_bytes"]
    assert device["peak_allocated_bytes"] <= device["peak_reserved_bytes"]


@pytest.mark.slow(
    only=(
        "in the manner of timm's train script",
        "transformers Trainer, SFT, checkpointing",
    )
)
@pytest.mark.parametrize("stack", parameters(figures=True))
def test_a_stack_holds_what_it_says_it_holds(run_stack: RunProgram, stack: dict[str, Any]) -> None:
    outcome = run_stack(stack)
    said, device = outcome.printed, outcome.device
    assert device["peak_allocated_bytes"] == said["peak"], "torch.cuda.max_memory_allocated()"
    assert said["peak"] > said["parameters"] + said["optimizer_states"]
    # Rounded up per tensor, at most to the next 2 MiB where a block was not worth splitting. At
    # the peak an optimizer's temporaries may be claimed beside its states.
    for owner, bytes_said in (
        ("parameter", said["parameters"]),
        ("optimizer_state", said["optimizer_states"]),
    ):
        assert 0 < bytes_said <= device["at_peak"][owner] <= 1.06 * bytes_said + 16 * MIB, owner


@pytest.mark.slow(
    only=(
        "in the manner of timm's train script",
        "transformers Trainer, SFT, checkpointing",
    )
)
@pytest.mark.parametrize("stack", parameters(figures=True))
def test_the_steps_of_a_stack_are_found(run_stack: RunProgram, stack: dict[str, Any]) -> None:
    outcome = run_stack(stack)
    trained = [step for step in outcome.device["steps"] if "optimizer" in step["phases"]]
    assert len(trained) == outcome.printed["steps"]


@pytest.mark.nightly
@pytest.mark.parametrize("stack", parameters())
def test_two_runs_of_a_stack_are_equal(run_stack: RunProgram, stack: dict[str, Any]) -> None:
    first, second = (busiest(run_stack(stack, turn=turn)) for turn in (0, 1))
    keys = [key for key in first if key.startswith(("peak_", "num_"))]
    assert {key: first[key] for key in keys} == {key: second[key] for key in keys}
    assert first["at_peak"] == second["at_peak"]
    assert first["steps"] == second["steps"]


@pytest.mark.parametrize("stack", parameters(refused=True))
def test_what_cannot_work_says_why(run_stack: RunProgram, stack: dict[str, Any]) -> None:
    outcome = run_stack(stack)
    assert outcome.document["verdict"] == "failed"
    assert stack["refused"] in outcome.document["reason"] + outcome.stderr


@pytest.mark.nightly
def test_vllm_finds_room_for_its_cache(run_stack: RunProgram) -> None:
    eager = next(stack for stack in ALL if "vllm" in stack["packages"])
    outcome = run_stack(eager)
    (tokens,) = re.findall(r"GPU KV cache size: ([\d,]+) tokens", outcome.stderr)
    # Keys and values of 16 layers with 8 heads of 64 numbers of 2 bytes.
    cache = int(tokens.replace(",", "")) * 2 * 16 * 8 * 64 * 2
    at_peak = max(outcome.document["devices"], key=lambda device: device["num_allocs"])["at_peak"]
    assert cache <= at_peak["kv_cache"] <= cache + 16 * 2 * MIB


@pytest.mark.nightly
def test_the_counts_that_are_kept_of_peft_are_its_own(
    thin_python: Path, installed: set[str]
) -> None:
    if not {"peft", "transformers"} <= installed:
        pytest.skip("not in the environment: peft, transformers")
    kept = json.loads(COUNTS.read_text(encoding="utf-8"))
    models = {name: dict(model.config.fields) for name, model in load_models().items()}
    rows = [
        (row["model"] if isinstance(row["model"], dict) else models[row["model"]], row["targets"])
        for row in kept.values()
    ]
    program = str(STACKS.parent / "peft_counts.py")
    done = subprocess.run(
        [str(thin_python), program], input=json.dumps(rows), text=True, capture_output=True,
        check=True,
    )  # fmt: skip
    counted = dict(zip(kept, json.loads(done.stdout.splitlines()[-1]), strict=True))
    assert counted == {name: row["trained"] for name, row in kept.items()}


def test_every_stack_has_a_program_and_known_keys() -> None:
    used = {stack["run"].split()[0] for stack in ALL}
    shared = {"figures.py", "made_up.py"}
    assert used == {path.name for path in STACKS.glob("*.py")} - shared
    assert all({"name", "packages", "run"} <= set(stack) <= KEYS for stack in ALL)


def test_a_library_with_cudas_runtime_built_in_is_named_once(run_program: RunProgram) -> None:
    outcome = run_program("asks_for_export_table.py")
    assert outcome.stderr.count("801 None") == 2, "not supported, and no table"
    assert outcome.stderr.count("has CUDA's runtime built in") == 1
    (row,) = [
        made
        for made in outcome.document["basis"]["allocator"]["assumptions"]
        if "cuGetExportTable" in made["what"]
    ]
    assert "libffi" in row["what"] and row["count"] == 2, "ctypes calls by way of libffi"
