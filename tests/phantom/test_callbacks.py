"""The callbacks for transformers, Lightning and Accelerate, in the frameworks themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.phantom.alone import printed_by
from tests.phantom.bare_gpu import bare_environment
from tests.phantom.conftest import execute, find_program

import ullage
from ullage.log.model import ExitKind
from ullage.log.reader import read_record

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]
SOURCE = str(Path(ullage.__file__).parents[1])
FRAMEWORKS = ("transformers", "lightning", "accelerate")


def train(python: Path, directory: Path, *words: str) -> tuple[int, str, str]:
    program = find_program("recording/frameworks.py")
    return execute(
        [str(python), program, SOURCE, *words],
        directory,
        dict(bare_environment(python, XDG_RUNTIME_DIR=str(directory))),
    )


def result_of(stdout: str) -> dict[str, object]:
    document: dict[str, object] = json.loads(stdout.splitlines()[-1])
    return document


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_training_is_recorded_and_comes_to_the_same(
    thin_python: Path, tmp_path: Path, framework: str
) -> None:
    code, stdout, stderr = train(thin_python, tmp_path, framework, "-")
    assert code == 0, stderr
    plain = result_of(stdout)
    path = tmp_path / "run.pickle"
    code, stdout, stderr = train(thin_python, tmp_path, framework, str(path))
    assert code == 0, stderr
    assert result_of(stdout) == {**plain, "file": str(path)}
    record = read_record(path)
    assert record.measured is not None
    assert record.measured.num_steps == 4
    assert record.exit.kind is ExitKind.RETURNED
    assert record.devices[0].peak_allocated_bytes == plain["result"][2]  # type: ignore[index]
    assert len(record.events) > 0


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_training_that_fails_is_recorded_and_fails_as_it_would(
    thin_python: Path, tmp_path: Path, framework: str
) -> None:
    path = tmp_path / "run.pickle"
    code, _, stderr = train(thin_python, tmp_path, framework, str(path), "fails")
    assert code == 1
    assert "ValueError: the model's own" in stderr
    record = read_record(path)
    assert record.measured is not None
    assert record.measured.num_steps == 1
    assert record.exit.exception == "builtins.ValueError"


@pytest.mark.slow
def test_a_recording_that_cannot_be_written_changes_nothing(
    thin_python: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    code, stdout, stderr = train(thin_python, tmp_path, "accelerate", "file/run.pickle")
    assert code == 0, stderr
    assert "could not be written" in stderr
    assert result_of(stdout)["file"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "framework",
    [
        "accelerate",
        pytest.param("transformers", marks=pytest.mark.nightly),
        pytest.param("lightning", marks=pytest.mark.nightly),
    ],
)
def test_each_of_two_ranks_has_a_file_with_its_number(
    thin_python: Path, tmp_path: Path, framework: str
) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    program = find_program("recording/frameworks.py")
    words = [SOURCE, framework, str(tmp_path / "run.pickle")]
    variables = bare_environment(thin_python, num_gpus=2, XDG_RUNTIME_DIR=str(tmp_path))
    command = [str(thin_python), *torchrun, program, *words]
    code, _, stderr = execute(command, tmp_path, dict(variables))
    assert code == 0, stderr
    paths = sorted(tmp_path.glob("*.pickle"))
    assert [path.name for path in paths] == ["run-rank0.pickle", "run-rank1.pickle"]
    for rank, path in enumerate(paths):
        record = read_record(path)
        assert record.rank == rank and record.exit.kind is ExitKind.RETURNED
        assert record.measured is not None and record.measured.num_steps == 4
        assert len(record.events) > 0


@pytest.mark.slow
def test_a_trainer_whose_step_cannot_be_run_again_is_refused(thin_python: Path) -> None:
    errors = printed_by(thin_python, "guard/trainers.py", "refused")
    assert errors == {
        "transformers": "DeepSpeed's backward cannot be run again; train without it",
        "lightning": "a step of SimpleNamespace cannot be run again; use another strategy",
    }
