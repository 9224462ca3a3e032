"""Which of a program's words are a launcher's configuration, and how they are exchanged."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from ullage.ground.errors import SpecError
from ullage.players.phantom.launch import LaunchOptions
from ullage.players.phantom.launcher import launcher_of
from ullage.players.phantom.program import UserProgram
from ullage.players.phantom.rank import Rank
from ullage.search.launchers.launched import AccelerateLaunched, DeepSpeedLaunched, find_launched
from ullage.search.launchers.shardings import SHARDINGS, Engine, Sharding, splitting_sequences
from ullage.search.runs.job import Job


def job_of(words: str, script: str = "train.py") -> Job:
    """Rank 0 of 4, with the words as they were given and the script that they come to."""
    argv = tuple(words.split())
    started = argv[argv.index(script) :]
    options = LaunchOptions(rank=Rank(0, 4, 4), variables={"ACCELERATE_MIXED_PRECISION": "bf16"})
    nothing = cast(Any, None)
    return Job(UserProgram(sys.executable, started, argv), nothing, nothing, options)


def test_accelerates_configuration_is_what_varies(tmp_path: Path) -> None:
    found = find_launched(job_of("accelerate launch --num_processes 4 train.py --lr 1"))
    assert isinstance(found, AccelerateLaunched)
    assert found.own == {"mixed_precision": "bf16"}
    assert (found.words[: found.place], found.num_ranks) == (("accelerate", "launch"), 4)
    assert tuple(found.shardings) == (*SHARDINGS, splitting_sequences(4))
    module = find_launched(job_of("-m accelerate.commands.launch train.py"))
    assert isinstance(module, AccelerateLaunched)
    assert module.words[: module.place] == ("-m", "accelerate.commands.launch")
    own = tmp_path / "own.json"
    own.write_text('{"mixed_precision": "fp16", "num_machines": 1}')
    pytest.importorskip("yaml")
    for option in (f"--config_file {own}", f"--config_file={own}"):
        read = find_launched(job_of(f"accelerate launch {option} --quiet train.py"))
        assert isinstance(read, AccelerateLaunched)
        assert read.own == {"mixed_precision": "fp16", "num_machines": 1}
        assert read.words == ("accelerate", "launch", "--quiet", "train.py")


@pytest.mark.parametrize(
    "option", ["--multi_gpu", "--use_fsdp", "--zero_stage=2", "--use_deepspeed"]
)
def test_a_command_line_that_says_how_ranks_share_is_refused(option: str) -> None:
    with pytest.raises(SpecError, match="leave it out"):
        find_launched(job_of(f"accelerate launch {option} train.py --use_cache"))


def test_options_of_the_script_are_its_own() -> None:
    assert find_launched(job_of("accelerate launch train.py --use_fsdp --zero_stage 2")) is not None


def test_deepspeeds_file_is_what_varies(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"train_batch_size": 8}))
    for words in (f"train.py --deepspeed {file}", f"torchrun train.py --deepspeed={file} --lr 1"):
        job = job_of(words)
        found = find_launched(job)
        assert isinstance(found, DeepSpeedLaunched)
        assert found.own == {"train_batch_size": 8}
        assert {one.engine for one in found.shardings} == {Engine.DEEPSPEED}
        (other,) = found.jobs([Path("other.json")], job)
        assert isinstance(other, Job)
        assert "other.json" in " ".join(other.program.arguments)
        assert str(file) not in " ".join(other.program.arguments)
        assert other.program.argv == job.program.argv
        text = found.text(Sharding(Engine.DEEPSPEED, 3), ())
        assert json.loads(text) == {"train_batch_size": 8, "zero_optimization": {"stage": 3}}


def test_other_programs_have_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text('{"lr": 1}')
    for words in ("train.py", "torchrun train.py", f"train.py --config {tmp_path / 'own.json'}"):
        assert find_launched(job_of(words)) is None


def test_launchers_that_can_be_asked() -> None:
    assert launcher_of(["accelerate", "launch", "train.py"]) == "accelerate"
    assert launcher_of(["bin/torchrun", "train.py"]) == "torchrun"
    assert launcher_of(["-m", "torch.distributed.run", "train.py"]) == "torch.distributed.run"
    assert launcher_of(["train.py", "accelerate"]) is None
    assert launcher_of([]) is None
    with pytest.raises(SpecError, match="the script alone to play one rank"):
        launcher_of(["deepspeed", "train.py"])
