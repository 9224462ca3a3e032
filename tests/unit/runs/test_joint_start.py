"""What supervisors of the ranks of a job have in common."""

from __future__ import annotations

import json
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path

import pytest

from ullage.act.guard.end_note import EndNote
from ullage.ground.errors import SpecError
from ullage.search.runs.joint_start import Job, open_job, variables_of

RANKS = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def is_noted(job: Job) -> bool:
    return job.failure is not None


def test_what_one_rank_notes_all_find(temporary: Path) -> None:
    note = EndNote(1, "1", "OutOfMemoryError", "2.00 GiB asked for", is_out_of_memory=True)
    with open_job({**RANKS, "RANK": "0"}) as job, open_job({**RANKS, "RANK": "1"}) as other:
        job.begin(0)
        (other.begin(0) / "end-1.json").write_text(json.dumps(asdict(note)))
        assert job.failure == job.find_failure() == note
        job.begin(1)
        assert not is_noted(job), "it is of the start before"
    assert not [*temporary.iterdir()]


def test_ranks_start_again_once_all_have_ended() -> None:
    with open_job({**RANKS, "RANK": "0"}) as job, open_job({**RANKS, "RANK": "1"}) as other:
        job.begin(0)
        other.begin(0)
        problems: list[str] = []
        waiting = threading.Thread(target=lambda: problems.append(job.wait_for_all()))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive(), "the other has not ended"
        assert other.wait_for_all() == ""
        waiting.join()
        assert problems == [""]


def test_a_rank_that_does_not_end_is_waited_for_no_longer_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ullage.search.runs.joint_start._DEADLINE_S", 0.2)
    with open_job({**RANKS, "RANK": "0"}) as job:
        job.begin(0)
        assert job.wait_for_all().startswith("a rank that did not is still there")


def test_what_killed_supervisors_have_left_is_not_found(temporary: Path) -> None:
    with open_job({**RANKS, "RANK": "0"}) as job:
        directory = job.begin(0)
        left = directory.parent.parent
        saved = left.with_name("saved")
        left.rename(saved)
    saved.rename(left)
    with open_job({**RANKS, "RANK": "0"}) as job:
        assert not (left / "0").exists()
        job.begin(0)
    assert not [*temporary.iterdir()]


def test_a_link_in_the_place_of_the_directory_is_not_followed(temporary: Path) -> None:
    with open_job({**RANKS, "RANK": "0"}) as job:
        name = job.begin(0).parent.parent
    others = temporary / "others"
    (others / "kept").mkdir(parents=True)
    name.symlink_to(others)
    with pytest.raises(SpecError, match="is a link or"), open_job({**RANKS, "RANK": "0"}):
        pass
    assert (others / "kept").is_dir()


def test_one_process_has_a_directory_of_its_own() -> None:
    with open_job({}) as job, open_job({}) as other:
        assert not job.is_joint and job.begin(0) != other.begin(0)


def test_restarts_of_ranks_and_of_torchrun_are_counted_apart() -> None:
    assert variables_of(2, {"TORCHELASTIC_RESTART_COUNT": "1"}) == {
        "TORCHELASTIC_RESTART_COUNT": "2001"
    }
    assert variables_of(0, {"TORCHELASTIC_RESTART_COUNT": "1"}) == {
        "TORCHELASTIC_RESTART_COUNT": "1"
    }
    assert variables_of(2, {}) == {}
