"""A recording comes back as it was, up to where it was cut off."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ullage.ground.errors import SpecError
from ullage.ground.files import NotWrittenError
from ullage.operate.watch.recording import Recording, replay
from ullage.operate.watch.sample import DeviceSample, Sample

SAMPLES = [Sample(float(turn), "host", (DeviceSample(0, "GPU-0", "H100"),)) for turn in range(5)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A recording of five samples."""
    path = tmp_path / "watch.jsonl"
    with Recording(path, force=False) as recording:
        for sample in SAMPLES:
            recording.add(sample)
    return path


def test_what_was_recorded_is_played(file: Path) -> None:
    assert list(replay(file)) == SAMPLES


@pytest.mark.parametrize("lost", [1, 7, 40])
def test_a_line_that_is_cut_off_is_left_out(file: Path, lost: int) -> None:
    os.truncate(file, file.stat().st_size - lost)
    warnings: list[str] = []
    samples = list(replay(file, on_warning=warnings.append))
    if lost == 1:  # only the line break is missing
        assert samples == SAMPLES and not warnings
    else:
        assert samples == SAMPLES[:4]
        assert warnings == [f"line 5 of {str(file)!r} is cut off, and is left out"]


def test_each_sample_is_in_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "watch.jsonl"
    with Recording(path, force=False) as recording:
        recording.add(SAMPLES[0])
        assert list(replay(path)) == SAMPLES[:1]


def test_a_line_that_is_no_sample_is_named(file: Path) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0], b"{}\n", lines[1]]))
    with pytest.raises(SpecError, match=r"line 2 of '.*watch.jsonl' is not a sample"):
        list(replay(file))


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x04pickle\n"])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(SpecError):
        list(replay(path))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        list(replay(tmp_path / "none"))


def test_another_file_is_not_overwritten(file: Path) -> None:
    with pytest.raises(SpecError, match="exists"):
        Recording(file, force=False)
    with Recording(file, force=True) as recording:
        recording.add(SAMPLES[0])
    assert list(replay(file)) == SAMPLES[:1]


def test_a_full_disk_is_said() -> None:
    with (
        Recording(Path("/dev/full"), force=False) as recording,
        pytest.raises(NotWrittenError, match="No space left"),
    ):
        recording.add(SAMPLES[0])
