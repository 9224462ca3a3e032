"""A snapshot to share: nothing in it says where and by whom it was made, all else is as it was."""

from __future__ import annotations

import io
import lzma
import pickle
from pathlib import Path
from typing import Any

import pytest

from ullage.ground.errors import SnapshotError
from ullage.log.compact_format.compact import write_compact
from ullage.log.scrubbing.scrub import Scrubbed, scrub_snapshot
from ullage.log.snapshot_reader import read_snapshot

GOLDEN = Path(__file__).parents[2] / "golden" / "snapshots"
NAMES = sorted(path.name.partition(".")[0] for path in GOLDEN.glob("*.pickle.xz"))
HOME = "/home"
TORCH = f"{HOME}/alice/miniconda3/lib/python3.11/site-packages/torch/nn/modules/linear.py"
TRAIN = f"{HOME}/alice/secret-project/train.py"


def scrub(content: bytes, directory: Path, **options: Any) -> tuple[bytes, Scrubbed]:
    source = directory / "snapshot.pickle"
    source.write_bytes(content)
    target = io.BytesIO()
    done = scrub_snapshot(source, target, **{"key": b"key", **options})
    return target.getvalue(), done


def frame(filename: str, name: str = "forward") -> dict[str, Any]:
    return {"filename": filename, "line": 7, "name": name}


def snapshot_of(*filenames: str, **more: Any) -> dict[str, Any]:
    """A snapshot with one event, whose stack has these files."""
    event = {"action": "alloc", "addr": 2**46, "size": 512, "stream": 0,
             "frames": [frame(name) for name in filenames]}  # fmt: skip
    return {"segments": [], "device_traces": [[event]], **more}


def scrub_value(value: Any, directory: Path, **options: Any) -> Any:
    return pickle.loads(scrub(pickle.dumps(value, 4), directory, **options)[0])


def scrub_file(filename: str, directory: Path, **options: Any) -> str:
    """What becomes of the name of a frame's file."""
    got = scrub_value(snapshot_of(filename), directory, **options)
    return str(got["device_traces"][0][0]["frames"][0]["filename"])


@pytest.mark.parametrize(
    ("filename", "expected"),
    [
        (TORCH, "torch/nn/modules/linear.py"),
        ("/usr/lib/python3/dist-packages/apex/x.py", "apex/x.py"),
        ("/usr/lib/python3.10/threading.py", "python3.10/threading.py"),
        (r"C:\Users\alice\env\Lib\site-packages\torch\x.py", r"torch\x.py"),
        ("/build/alice/pytorch/c10/core/Allocator.cpp", "c10/core/Allocator.cpp"),
        ("/opt/build/aten/src/ATen/Context.cpp", "aten/src/ATen/Context.cpp"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
        ("??", "??"),
        ("train.py", "train.py"),
        ("models/layer.py", "models/layer.py"),
    ],
)
def test_a_path_becomes_relative_to_what_it_is_part_of(
    tmp_path: Path, filename: str, expected: str
) -> None:
    assert scrub_file(filename, tmp_path) == expected


@pytest.mark.parametrize(
    "filename",
    [TRAIN, "~/train.py", r"D:\work\alice\train.py", r"\\server\alice\train.py", "/train.py",
     "/media/My Drive/alice's files/train.py", "file:///srv/alice/train.py"],
)  # fmt: skip
def test_any_other_directory_becomes_a_few_letters(tmp_path: Path, filename: str) -> None:
    letters, name = scrub_file(filename, tmp_path).split("/")
    assert name == "train.py"
    assert len(letters) == 8 and int(letters, 16) >= 0


def test_equal_directories_get_equal_letters_by_key(tmp_path: Path) -> None:
    value = snapshot_of("/data/a/x.py", "/data/a/y.py", "/data/b/x.py")
    event = scrub_value(value, tmp_path)["device_traces"][0][0]
    first, second, third = (frame["filename"].split("/") for frame in event["frames"])
    assert first[0] == second[0] != third[0]
    assert [first[1], second[1], third[1]] == ["x.py", "y.py", "x.py"]
    again = scrub_file("/data/a/z.py", tmp_path)
    other = scrub_file("/data/a/z.py", tmp_path, key=b"other")
    assert again.split("/")[0] == first[0] != other.split("/")[0]


def test_the_name_of_a_user_goes_wherever_it_stands_as_a_word(tmp_path: Path) -> None:
    value = snapshot_of(TRAIN, TORCH)
    value["device_traces"][0][0]["frames"].append(frame("alice_layers.py", "alice_forward"))
    value["device_traces"][0][0]["user_metadata"] = "run of Alice, not of malice"
    event = scrub_value(value, tmp_path)["device_traces"][0][0]
    assert event["frames"][-1] == frame("removed_layers.py", "removed_forward")
    assert event["user_metadata"] == "run of removed, not of malice"


def test_a_user_who_is_called_like_a_package_does_not_take_its_frames_away(tmp_path: Path) -> None:
    value = snapshot_of(f"{HOME}/torch/env/lib/python3.12/site-packages/torch/nn/x.py")
    event = scrub_value(value, tmp_path)["device_traces"][0][0]
    assert event["frames"][0]["filename"] == "torch/nn/x.py"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("loaded /srv/models/llama/weights.bin at once", "loaded {}/weights.bin at once"),
        ("WANDB_API_KEY=abc123 python", "WANDB_API_KEY=removed python"),
        ("host=gpu17.cluster rank=3", "host=removed rank=3"),
        ("mail a.b@lab.example.org", "mail removed"),
        ("from 10.0.12.7 to all", "from removed to all"),
        ("see https://wandb.ai/me/run?x=1", "see removed"),
        ("layer 3/4, B=8, 1.5e-3 and/or ok", "layer 3/4, B=8, 1.5e-3 and/or ok"),
        ("torch.nn.functional.linear", "torch.nn.functional.linear"),
        ("c10::Allocator@GLIBC_2.2.5", "c10::Allocator@GLIBC_2.2.5"),
    ],
)
def test_free_texts_lose_what_is_private(tmp_path: Path, text: str, expected: str) -> None:
    value = snapshot_of("/srv/models/llama/x.py", external_annotations=[{"name": text}])
    got = scrub_value(value, tmp_path)
    letters = got["device_traces"][0][0]["frames"][0]["filename"].split("/")[0]
    assert got["external_annotations"][0]["name"] == expected.format(letters)


def test_words_that_are_given_go_too(tmp_path: Path) -> None:
    value = snapshot_of("apollo.py", external_annotations=[{"name": "Apollo/step"}])
    got = scrub_value(value, tmp_path, words=["apollo"])
    assert got["device_traces"][0][0]["frames"][0]["filename"] == "removed.py"
    assert got["external_annotations"][0]["name"] == "removed/step"


def test_the_words_of_the_format_stay_whoever_bears_them(tmp_path: Path) -> None:
    value = snapshot_of(*(f"{HOME}/{word}/x.py" for word in ("alloc", "frames", "size")))
    got = scrub_value(value, tmp_path)
    assert got["device_traces"][0][0]["action"] == "alloc"
    assert got["device_traces"][0][0]["size"] == 512


def test_command_lines_and_what_is_foreign_go_as_a_whole(tmp_path: Path) -> None:
    record = {"schema": "ullage.record/1", "argv": ["train.py", "--token", "hunter2", "alloc"],
              "torch": "2.15.0", "pid": 7}  # fmt: skip
    value = snapshot_of("train.py", ullage=record, machine={"owner": ["Bob"], "Bob": "gpu-17"})
    got = scrub_value(value, tmp_path)
    # What stands elsewhere too, as a file or an action, tells nothing new.
    assert got["ullage"] == {**record, "argv": ["train.py", "removed", "removed", "alloc"]}
    assert "Bob" not in repr(got) and "gpu-17" not in repr(got)
    assert set(value) == set(got)


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise AssertionError(f"{module}.{name}")


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_everything_else_is_as_it_was(tmp_path: Path, protocol: int) -> None:
    shared = [frame(TORCH), frame("é" * 200)]
    events = [
        {"action": "alloc", "addr": 2**46 + i, "size": i * 700, "stream": 0, "time_us": 2**50,
         "frames": shared, "pool_id": (0, i % 2), "user_metadata": None}
        for i in range(3000)
    ]  # fmt: skip
    value = {
        "segments": [{"address": 2**46, "blocks": [], "is_expandable": False}],
        "device_traces": [events, []],
        "allocator_settings": {"max_split_size": -1, "x": 0.25},
    }
    if protocol >= 3:
        value["ullage"] = {"events": {"address": b"alice\xff" * 1000}}
    content, done = scrub(pickle.dumps(value, protocol), tmp_path)
    got = _Plain(io.BytesIO(content)).load()
    for each in events[:1]:  # its frames are all one list
        each["frames"][0]["filename"] = "torch/nn/modules/linear.py"
    if protocol == 0:
        got["device_traces"][0][0]["frames"][1]["filename"] = "é" * 200
    assert got == value
    assert got["device_traces"][0][0]["frames"] is got["device_traces"][0][1]["frames"]
    assert done == Scrubbed(num_relative=1, num_hashed=0, num_cleaned=0, num_removed=0, num_names=1)


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_says_the_same_but_for_its_paths(tmp_path: Path, name: str) -> None:
    content = lzma.decompress((GOLDEN / f"{name}.pickle.xz").read_bytes())
    got, _ = scrub(content, tmp_path)
    before, after = pickle.loads(content), _Plain(io.BytesIO(got)).load()

    def without_files(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_files(entry) for key, entry in value.items() if key != "filename"}
        if isinstance(value, list | tuple):
            return [without_files(entry) for entry in value]
        return value

    assert without_files(before["segments"]) == without_files(after["segments"])
    for old, new in zip(before["device_traces"], after["device_traces"], strict=True):
        for entry in (*old, *new):
            entry["frames"] = [frame["name"] for frame in entry.get("frames", ())]
        assert old == new
    (tmp_path / "after.pickle").write_bytes(got)
    files = read_snapshot(tmp_path / "after.pickle").stacks.frames.file
    assert not any(file.startswith(("/", "~")) for file in files)


def test_a_scrubbed_snapshot_is_left_alone_the_second_time(tmp_path: Path) -> None:
    once, _ = scrub(pickle.dumps(snapshot_of(TRAIN, TORCH), 4), tmp_path)
    twice, done = scrub(once, tmp_path)
    assert pickle.loads(twice) == pickle.loads(once)
    assert done == Scrubbed(0, 0, 0, 0, 0)


def test_what_is_no_snapshot_is_told(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=r'cannot read .*it has no "segments"'):
        scrub(pickle.dumps({"a": 1}), tmp_path)
    with pytest.raises(SnapshotError, match="No such file"):
        scrub_snapshot(tmp_path / "missing", io.BytesIO(), key=b"")
    (tmp_path / "snapshot.pickle").write_bytes(pickle.dumps(snapshot_of("a.py")))
    write_compact(read_snapshot(tmp_path / "snapshot.pickle"), tmp_path / "x.ullage")
    with pytest.raises(SnapshotError, match="compact file of ullage; give the snapshot"):
        scrub_snapshot(tmp_path / "x.ullage", io.BytesIO(), key=b"")
