"""Programs that Accelerate or DeepSpeed start: a rank alone is one of theirs, and the search among
their configurations names only such as were seen to fit.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ullage
from ullage.act.techniques.made_for import MadeFor
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action
from ullage.ground.programs import program_path
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.rank import choose_ranks
from ullage.search.budget import Limit
from ullage.search.findings import FitReport
from ullage.search.launchers.accelerate_file import accelerate_config, to_yaml
from ullage.search.launchers.launched import deepspeed_config, find_launched, fit_launched
from ullage.search.launchers.shardings import (
    SHARDINGS,
    Engine,
    OnHost,
    Sharding,
    splitting_sequences,
)
from ullage.search.runs.job import Job, make_job, make_options
from ullage.search.runs.trials import Trials
from ullage.verbs.run.options import RunOptions

pytestmark = pytest.mark.phantom

PROGRAMS = Path(__file__).parents[1] / "programs" / "distributed"
ACCELERATED = str(PROGRAMS / "accelerated.py")
BY_DEEPSPEED = str(PROGRAMS / "deepspeed_json.py")
BY_TRAINER = str(PROGRAMS / "trainer.py")
GPU = "rtx-4090"
MIB = 2**20
MAIN = "from ullage.cli import main; main()"
TIMEOUT_S = 600
# Of the small transformer with two layers.
NUM_PARAMETERS = 2_101_760
DDP, FSDP2 = Sharding(Engine.DDP, 0), Sharding(Engine.FSDP2, 3)
DEEPSPEED_CONFIG = {"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}}


@pytest.fixture
def accelerate(thin_python: Path) -> str:
    """The interpreter of an environment that has Accelerate."""
    return with_command(thin_python, "accelerate")


@pytest.fixture
def deepspeed(thin_python: Path) -> str:
    """The interpreter of an environment that has DeepSpeed."""
    return with_command(thin_python, "deepspeed")


def with_command(python: Path, name: str) -> str:
    """The interpreter, where a command is beside it."""
    if not (python.parent / name).exists():
        pytest.skip(f"not in the environment: {name}")
    return str(python)


def play(python: str, *words: str, **options: Any) -> Any:
    """A run of two ranks, or of one of them."""
    found = ullage.run(words, gpu=GPU, python=python, **options)
    assert found.exit_code == 0, found.text()
    return found


def figures(run: ullage.Run, number: int = 0) -> tuple[int, ...]:
    """What a rank took."""
    totals = run.devices[number].totals
    return (
        totals.peak_requested_bytes, totals.peak_allocated_bytes, totals.peak_reserved_bytes,
        totals.num_allocs,
    )  # fmt: skip


def search(job: Job, budget_bytes: int, *shardings: Sharding) -> FitReport:
    """A search among some of the shardings."""
    launched = find_launched(job)
    assert launched is not None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(launched), "shardings", shardings)
        with Trials(job) as trials:
            return fit_launched(trials, job, launched, budget_bytes, Limit(math.inf))


def rank_zero(python: str, *words: str) -> Job:
    """The first of two ranks, where memory is without end."""
    return make_job(
        words,
        device=replace(choose_device(GPU), is_unlimited=True),
        python=python,
        options=replace(make_options(RunOptions([])), rank=choose_ranks((0,), 2)[0]),
    )


def test_a_launcher_tells_what_it_would_start_and_starts_nothing(accelerate: str) -> None:
    directory = Path(accelerate).parent
    torchrun, launch = (str(directory / name) for name in ("torchrun", "accelerate"))
    commands = [
        [torchrun, "--nproc-per-node", "2", "train.py", "--lr", "1"],
        [launch, "launch", "--cpu", "--mixed_precision", "bf16", "-m", "package.train"],
        [launch, "launch", "--no_such_option", "train.py"],
        ["-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py", "--lr", "1"],
    ]
    done = subprocess.run(
        [accelerate, str(program_path("launcher_query"))], input=json.dumps(commands),
        capture_output=True, text=True, check=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    first, second, third, fourth = json.loads(done.stdout.splitlines()[-1])
    assert fourth == first
    assert first == {"program": ["train.py", "--lr", "1"], "is_python": True, "variables": {}}
    assert second["program"] == ["-m", "package.train"]
    variables = second["variables"]
    assert variables["ACCELERATE_USE_CPU"].lower() == "true"
    assert variables["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert third == {"failure": "SystemExit: 2"}


@pytest.mark.slow
def test_a_rank_alone_is_one_that_accelerate_starts(accelerate: str, tmp_path: Path) -> None:
    file = tmp_path / "accelerate.yaml"
    config = accelerate_config({"mixed_precision": "bf16"}, FSDP2.checkpointed, 2, ["Block"])
    file.write_text(to_yaml(config))
    words = ("accelerate", "launch", "--config_file", str(file), ACCELERATED)
    both = play(accelerate, *words, gpus=2)
    alone = play(accelerate, *words, world_size=2, ranks=1)
    assert figures(both, 0) == figures(both, 1) == figures(alone)


@pytest.mark.nightly
def test_a_search_finds_a_configuration_that_fits_where_the_program_does_not(
    accelerate: str, tmp_path: Path
) -> None:
    words = ("accelerate", "launch", ACCELERATED, "8")
    job = rank_zero(accelerate, *words)
    as_it_is = play(accelerate, *words, world_size=2, ranks=0).devices[0].peak_used_bytes
    report = search(job, as_it_is - 2 * MIB, DDP, FSDP2)
    best = report.best
    assert best is not None and best.seen is not None and best.seen.fits
    assert best.name.startswith("FSDP2") and best.used_bytes <= as_it_is - 2 * MIB
    assert not report.as_it_is.configuration
    # It was watched at its work, which moves the peak a little, and not tried on the device.
    assert report.as_it_is.used_bytes == pytest.approx(as_it_is, rel=0.005)
    assert {one.name for one in report.candidates} >= {"unchanged", "DDP", "FSDP2"}
    assert all(one.why for one in report.candidates if one is not best)
    # What was written is what was seen, for each of two ranks that Accelerate starts.
    file = tmp_path / "accelerate.yaml"
    file.write_text(best.configuration)
    run = play(accelerate, "accelerate", "launch", "--config_file", str(file), *words[2:], gpus=2)
    assert max(one.peak_used_bytes for one in run.devices) == best.used_bytes


@pytest.mark.nightly
def test_nothing_is_said_to_fit_where_nothing_does(accelerate: str) -> None:
    job = rank_zero(accelerate, "accelerate", "launch", ACCELERATED)
    least = choose_device(GPU).gpu.context_high_bytes + MIB
    report = search(job, least, FSDP2)
    assert report.best is None and report.plan is None and report.exit_code == 1
    assert [one.name for one in report.candidates if one.why.endswith("too much")]


@pytest.mark.nightly
@pytest.mark.parametrize("sharding", SHARDINGS, ids=lambda one: one.name)
def test_accelerate_does_what_its_file_says(
    accelerate: str, sharding: Sharding, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if sharding.engine is Engine.DEEPSPEED:
        with_command(Path(accelerate), "deepspeed")
    file = tmp_path / "accelerate.yaml"
    file.write_text(to_yaml(accelerate_config({"mixed_precision": "bf16"}, sharding, 2, ["Block"])))
    words = ("accelerate", "launch", "--config_file", str(file), ACCELERATED, "8")
    run = play(accelerate, *words, world_size=2, ranks=0)
    said = json.loads([one for one in capfd.readouterr().out.splitlines() if one[:1] == "{"][-1])
    kinds = {Engine.DDP: "MULTI_GPU", Engine.FSDP2: "FSDP", Engine.DEEPSPEED: "DEEPSPEED"}
    assert (said["type"], said["num_processes"]) == (kinds[sharding.engine], 2)
    assert said["precision"] == "bf16"
    if sharding.engine is Engine.DEEPSPEED:
        assert said["zero_stage"] == sharding.zero_stage
    if sharding.on_host is OnHost.ALL:
        assert run.document["devices"][0]["at_peak"]["optimizer_state"] < MIB


@pytest.mark.nightly
def test_ranks_that_split_sequences_hold_a_share_of_the_activations(
    accelerate: str, tmp_path: Path
) -> None:
    peaks = []
    for number, sharding in enumerate((FSDP2, splitting_sequences(2))):
        file = tmp_path / f"{number}.yaml"
        kinds = ["LlamaDecoderLayer"]
        file.write_text(to_yaml(accelerate_config({"mixed_precision": "bf16"}, sharding, 2, kinds)))
        words = ("accelerate", "launch", "--config_file", str(file), BY_TRAINER)
        both = play(accelerate, *words, gpus=2)
        assert figures(both, 0) == figures(both, 1)
        at_peak = both.document["devices"][0]["at_peak"]
        peaks.append(at_peak["activation"] + at_peak["temporary"])
    assert 0.4 < peaks[1] / peaks[0] < 0.7


@pytest.mark.nightly
def test_a_search_writes_deepspeeds_own_file_and_a_plan_for_what_it_cannot_say(
    deepspeed: str, tmp_path: Path
) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(DEEPSPEED_CONFIG))
    words = (BY_DEEPSPEED, "--deepspeed", str(file), "--layers", "8")
    zero1, zero3 = Sharding(Engine.DEEPSPEED, 1), Sharding(Engine.DEEPSPEED, 3)
    job = rank_zero(deepspeed, *words)
    whole = search(job, choose_device(GPU).gpu.total_bytes, zero1, zero3)
    used = {one.name: one.used_bytes for one in whole.candidates}
    report = search(job, min(used.values()) - 2 * MIB, zero1, zero3)
    assert report.best is not None and "checkpointing" in report.best.name, report.candidates
    assert report.plan is not None and report.plan.actions[0].technique == "checkpoint"
    assert json.loads(report.best.configuration).items() >= DEEPSPEED_CONFIG.items()
    found = tmp_path / "found.json"
    found.write_text(report.best.configuration)
    run = play(
        deepspeed, BY_DEEPSPEED, "--deepspeed", str(found), "--layers", "8",
        world_size=2, ranks=0, plan=report.plan,
    )  # fmt: skip
    assert run.devices[0].peak_used_bytes == report.best.used_bytes


@pytest.mark.nightly
def test_deepspeed_does_what_its_file_says(
    deepspeed: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for stage, on_host in ((1, OnHost.NOTHING), (2, OnHost.OPTIMIZER), (3, OnHost.ALL)):
        file = tmp_path / f"{stage}.json"
        sharding = Sharding(Engine.DEEPSPEED, stage, on_host)
        file.write_text(json.dumps(deepspeed_config(DEEPSPEED_CONFIG, sharding)))
        play(deepspeed, BY_DEEPSPEED, "--deepspeed", str(file), world_size=2, ranks=0)
        out = capfd.readouterr().out
        said = json.loads([one for one in out.splitlines() if one[:1] == "{"][-1])
        assert said["zero_stage"] == stage
        assert (said["optimizer_on"] is None) == (on_host is OnHost.NOTHING)


@pytest.mark.nightly
def test_checkpointing_by_a_plan_changes_no_loss_under_zero_3(
    deepspeed: str, tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    blocks = {f"layers.{number}": "Block" for number in range(2)}
    torch_version = subprocess.run(
        [deepspeed, "-c", "import torch; print(torch.__version__)"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    made_for = MadeFor(torch_version, "Transformer", NUM_PARAMETERS, blocks, "AdamW")
    Plan((Action("checkpoint", tuple(blocks)),), made_for).save(file)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [*torchrun, str(PROGRAMS / "deepspeed_losses.py"), "3"]
    ours = [sys.executable, "-c", MAIN, "exec", "--plan", str(file), "--python", deepspeed, "--"]
    plain, planned = (
        subprocess.run(
            [*command, *words], capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            env=os.environ | {"DS_ACCELERATOR": "cpu"},
        )
        for command in ([deepspeed], ours)
    )  # fmt: skip
    assert plain.returncode == planned.returncode == 0, plain.stderr + planned.stderr
    losses = [
        json.loads(next(one for one in done.stdout.splitlines() if one[:1] == "["))
        for done in (plain, planned)
    ]
    assert len(losses[0]) == 3 and losses[0] == losses[1]
