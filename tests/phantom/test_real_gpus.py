"""What real GPUs recorded, event by event: tests/golden/snapshots/SOURCES.md.

Each program runs on the phantom and dumps a snapshot with torch's own call, as the recorded one
did. Every event must be the same: what was done, of how many bytes, and to which allocation.
"""

from __future__ import annotations

import io
import lzma
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

SNAPSHOTS = Path(__file__).parent.parent / "golden" / "snapshots"
FREES = ("free_requested", "free_completed")


@dataclass(frozen=True, slots=True)
class Recording:
    """A snapshot of a real GPU, and what makes one of the same program on the phantom.

    Attributes:
        num_events: in the recording.
        is_whole: it began with the process or with an empty cache, so that its segments can be
            the same; else they also hang on what was allocated before, at addresses not known.
    """

    name: str
    program: tuple[str, ...]
    torch: str
    gpu: str
    num_events: int
    is_whole: bool = True
    options: tuple[str, ...] = ()


BASIC = "basic_transformer.py"
EXPANDABLE = (
    "--alloc-conf",
    "expandable_segments:True",
)
RECORDINGS = [
    Recording("silmont_probe", ("attention_probe.py",), "2.6", "a100-80gb", 97),
    Recording("nothan_train", ("rope_transformer.py",), "2.6", "rtx-4090", 19_464, is_whole=False),
    Recording("hanfa_small_inf512", ("encoder_inference.py",), "2.9", "a100-80gb", 19_679),
    Recording("wed_med_train256", (BASIC, "training"), "2.11", "rtx-4090", 19_430, is_whole=False),
    Recording("charan_small_fwd", (BASIC, "first-passes"), "2.11", "rtx-4090", 9_670),
    Recording(
        "bol_xl_fwd512", (BASIC, "later-pass"), "2.11", "a100-80gb", 5_112, options=EXPANDABLE
    ),
]


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"the snapshot names {module}.{name}")


def trace(snapshot: dict[str, Any]) -> list[tuple[str, int, int | None]]:
    """Action, bytes, and the number of the allocation that it makes or frees; None: an older one.

    Addresses are the driver's to choose, so an allocation is known by its number.
    """
    (entries,) = (trace for trace in snapshot["device_traces"] if trace)
    numbers: dict[int, int] = {}
    found: list[tuple[str, int, int | None]] = []
    for entry in entries:
        if entry["action"] == "alloc":
            numbers[entry["addr"]] = len(found)
        number = numbers.get(entry["addr"]) if entry["action"] in ("alloc", *FREES) else None
        found.append((entry["action"], entry["size"], number))
    return found


def segments(snapshot: dict[str, Any]) -> list[tuple[int, list[tuple[int, str]]]]:
    """The size of each segment, and the size and state of its blocks from its start on."""
    return sorted(
        (segment["total_size"], [(block["size"], block["state"]) for block in segment["blocks"]])
        for segment in snapshot["segments"]
    )


def reserved_bytes(snapshot: dict[str, Any]) -> int:
    """What all segments hold."""
    return sum(segment["total_size"] for segment in snapshot["segments"])


@pytest.fixture(params=RECORDINGS, ids=lambda recording: recording.name)
def recording(request: pytest.FixtureRequest, torch_version: str) -> Recording:
    """Each recording whose torch is that of the environment."""
    found: Recording = request.param
    if not torch_version.startswith(f"{found.torch}."):
        pytest.skip(f"recorded with torch {found.torch}; the environment has {torch_version}")
    return found


@pytest.fixture
def both(recording: Recording, run_program: RunProgram) -> tuple[dict[str, Any], dict[str, Any]]:
    """The snapshot of the real GPU, and the phantom's."""
    program, *arguments = recording.program
    outcome = run_program(
        program, "dumped.pickle", *arguments, gpu=recording.gpu, options=recording.options
    )
    assert outcome.exit_code == 0, outcome.stderr
    real = lzma.decompress((SNAPSHOTS / f"{recording.name}.pickle.xz").read_bytes())
    ours = (outcome.directory / "dumped.pickle").read_bytes()
    return _PlainUnpickler(io.BytesIO(real)).load(), _PlainUnpickler(io.BytesIO(ours)).load()


def test_every_event_of_a_real_gpu_comes_in_its_order(
    recording: Recording, both: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    real, ours = (trace(snapshot) for snapshot in both)
    assert len(real) == recording.num_events
    pairs = enumerate(zip(real, ours, strict=False))
    assert next(((at, *pair) for at, pair in pairs if pair[0] != pair[1]), None) is None
    assert len(ours) == len(real)
    assert sum(number is not None for _, _, number in real) > 0.9 * len(real)


def test_the_segments_end_as_on_a_real_gpu(
    recording: Recording, both: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    real, ours = both
    if recording.is_whole:
        assert segments(ours) == segments(real)
        assert reserved_bytes(ours) == reserved_bytes(real)
    else:
        assert reserved_bytes(ours) == pytest.approx(reserved_bytes(real), rel=0.005)
