"""Bytes of real GPUs: recordings, snapshots, workloads, examples, logs, readings, and estimates."""

from __future__ import annotations

import argparse
import io
import json
import lzma
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.phantom.test_real_gpus import (
    RECORDINGS,
    SNAPSHOTS,
    Recording,
    _PlainUnpickler,
    reserved_bytes,
    trace,
)
from tests.unit.whatif.test_recordings import RECORDED_BY

from benchmarks.accuracy import compare, contexts
from benchmarks.accuracy.estimate import published
from benchmarks.accuracy.logs.row import MIB, Result, read_results, read_rows
from benchmarks.accuracy.phantom import HERE, run_workload
from benchmarks.accuracy.record import collect
from benchmarks.examples import EXAMPLES, run_example
from benchmarks.recording.bare import watch
from benchmarks.recording.gpu_page import STORED
from benchmarks.truth.case import FAILED, NOT_RUN, Case, Key, Meaning
from benchmarks.truth.options import BY_NIGHT, ROOT, Options, now, recorded
from ullage.explain.whatif.engine import what_if
from ullage.ground.errors import UllageError
from ullage.log.snapshot_reader import read_snapshot
from ullage.players.phantom.device import choose_device

SYNTHETIC: Final = "mosaic_SYNTHETIC"
EVENTS: Final = "events until one differs"
_TIMEOUT_S: Final = 600
_SLOW: Final = ("hf_", "timm_", "gpt_compiled")
"""Workloads that need more than torch, or minutes."""


def ours_of(device: dict[str, Any], peak: str) -> tuple[int, int, int]:
    """Low, likely and high of a peak in a run document."""
    low, high = (device[f"peak_{peak}_{end}_bytes"] for end in ("low", "high"))
    return low, device[f"peak_{peak}_bytes"], high


def used_of(device: dict[str, Any]) -> tuple[int, int, int]:
    """Of the whole device: the upper end is that by which the verdict goes, the likely figure has
    the context in the middle.
    """
    high, total = device["peak_used_bytes"], device["total_bytes"]
    middle = high - (device["context_high_bytes"] - device["context_low_bytes"]) // 2
    return total - device["headroom_high_bytes"], middle, high


def without(keys: Iterable[Key], run: str, note: str) -> Iterator[Case]:
    """Cases that have no figures today, and why."""
    return (Case.without(key, run, note) for key in keys)


def exact(key: Key, truth: int, ours: int, meaning: Meaning) -> Case:
    """A figure that is stated without an interval around it."""
    return Case.of(key, truth, (ours, ours, ours), meaning, now())


def recordings(options: Options) -> Iterator[Case]:
    """Snapshots whose programs run on the phantom, held event by event."""
    for recording in RECORDINGS:
        keys = [Key("recordings", recording.name, what) for what in (EVENTS, "reserved")]
        python = options.python_of(f"{recording.torch}.")
        if python is None:
            yield from without(keys, NOT_RUN, options.needs(recording.torch))
            continue
        try:
            yield from _play(recording, keys, python, options.work / recording.name)
        except (SystemExit, OSError, subprocess.TimeoutExpired) as error:
            yield from without(keys, FAILED, _last(error))


def _play(recording: Recording, keys: list[Key], python: Path, directory: Path) -> Iterator[Case]:
    program, *words = recording.program
    done = watch(
        "run", python, [str(ROOT / "tests" / "programs" / program), "dumped.pickle", *words],
        directory, ("--gpu", recording.gpu, *recording.options), timeout_s=_TIMEOUT_S,
    )  # fmt: skip
    if done.exit_code:
        raise SystemExit(done.output)
    packed = (SNAPSHOTS / f"{recording.name}.pickle.xz").read_bytes()
    dumped = (directory / "dumped.pickle").read_bytes()
    real, ours = (
        _PlainUnpickler(io.BytesIO(each)).load() for each in (lzma.decompress(packed), dumped)
    )
    events = _num_equal(trace(real), trace(ours))
    yield exact(keys[0], recording.num_events, events, Meaning.NEITHER)
    interval = ours_of(done.document["devices"][0], "reserved")
    yield Case.of(keys[1], reserved_bytes(real), interval, Meaning.NEED, now())


def _num_equal(real: Sequence[Any], ours: Sequence[Any]) -> int:
    """Events before the first that differs; all of ours where none does, be they more or fewer."""
    pairs = enumerate(zip(real, ours, strict=False))
    return next((at for at, (one, other) in pairs if one != other), len(ours))


def _last(error: Exception | SystemExit) -> str:
    """The last line of a message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:200]


def snapshots(options: Options) -> Iterator[Case]:
    """The requests of each snapshot, made again of PyTorch's allocator under the same settings."""
    for path in sorted(SNAPSHOTS.glob("*.pickle.xz")):
        name = path.name.partition(".")[0]
        key = Key("snapshots", name, "contradiction" if name == SYNTHETIC else "reserved")
        python = options.python_of(RECORDED_BY.get(name, ""))
        # Else any: what these traces meet did not change from 2.6 on (test_recordings.py).
        python = python or options.python_of("")
        if python is None:
            yield Case.without(key, NOT_RUN, options.needs("2.6 or later"))
            continue
        try:
            yield _replay(key, path, python, options.work / f"{name}.pickle")
        except UllageError as error:
            yield Case.without(key, FAILED, _last(error))


def _replay(key: Key, path: Path, python: Path, file: Path) -> Case:
    file.write_bytes(lzma.decompress(path.read_bytes()))
    snapshot = read_snapshot(file)
    report = what_if(snapshot, python=str(python), device=choose_device(None), settings=())
    note, check = f"torch {report.torch}", report.check
    if key.name != SYNTHETIC:
        truth, ours = check.recorded_reserved_bytes, check.replayed_reserved_bytes
        return replace(exact(key, truth, ours, Meaning.NEED), note=note)
    is_found = any("contradicts" in why for why in check.reasons)
    ours = (None, "found" if is_found else "not found", None)
    return Case(key, "found", ours, is_found, None, None, now(), f"{note}; a made-up file")


def workloads(options: Options) -> Iterator[Case]:
    """Workloads that were recorded on an H100 and an H200, run on the phantom."""
    for folder in sorted(path.parent for path in (HERE / "truth").glob("*/truth.json")):
        truth, _ = compare.read(folder)
        source = f"workloads, {folder.name.partition('-')[0].upper()}"
        for name, row in truth.items():
            keys = [Key(source, name, what) for what in (EVENTS, "allocated", "reserved", "device")]
            python = options.python_of(row["torch"].partition("+")[0])
            if name.startswith(_SLOW) and not options.is_night:
                yield from without(keys, NOT_RUN, BY_NIGHT)
            elif python is None:
                yield from without(keys, NOT_RUN, options.needs(row["torch"]))
            else:
                yield from _record(name, row, keys, python, folder, options.work)


def _record(
    name: str, row: dict[str, Any], keys: list[Key], python: Path, folder: Path, work: Path
) -> Iterator[Case]:
    """One workload; the folder of its run is removed."""
    with tempfile.TemporaryDirectory(dir=work) as place:
        gpu, parts = contexts.GPUS[row["gpu"]], Path(place)
        arguments = argparse.Namespace(gpu=gpu, python=python, timeout=_TIMEOUT_S)
        result = run_workload(name, parts, arguments)
        if result.error or result.document is None:
            yield from without(keys, FAILED, result.error or "it left no document")
            return
        told = collect(parts, parts)[name]
        compared = compare.compare(folder, parts)[name]
    if isinstance(compared, str):
        yield from without(keys, FAILED, compared)
        return
    device, real, ours = result.document["devices"][0], compare.highest(row), compare.highest(told)
    lengths, at = compared.num_events, compared.first_difference
    events = lengths[1] if at in (None, min(lengths)) else at
    yield exact(keys[0], lengths[0], events, Meaning.NEITHER)
    for key, meaning in ((keys[1], Meaning.NEITHER), (keys[2], Meaning.NEED)):
        # The peaks are those of the steps; the run may have had a higher one before them.
        low, peak, high = ours_of(device, key.quantity)
        likely = ours[key.quantity]
        interval = (likely - (peak - low), likely, likely + (high - peak))
        yield Case.of(key, real[key.quantity], interval, meaning, now())
    yield Case.of(keys[3], max(map(_used, row["steps"])), used_of(device), Meaning.NEED, now())


def _used(step: dict[str, int]) -> int:
    """Of the device at a step's peak: it was read at its end, when some may be given back."""
    return step["device_used"] - step["reserved_now"] + step["reserved"]


def examples(options: Options) -> Iterator[Case]:
    """The programs of examples/ whose peaks an H200 told."""
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    torch = stored["torch"]
    python = options.python_of(torch.partition("+")[0])
    for stem, row in stored["examples"].items():
        keys = [Key("examples, H200", stem, what) for what in ("allocated", "reserved")]
        if python is None or not options.is_night:
            why = options.needs(torch) if options.is_night else BY_NIGHT
            yield from without(keys, NOT_RUN, why)
            continue
        program = next(one for one in EXAMPLES if one.startswith(f"{stem}/"))
        try:
            document = run_example(python, program, "h200").document
        except SystemExit as error:
            yield from without(keys, FAILED, _last(error))
            continue
        device = document["devices"][0]
        for key, meaning in zip(keys, (Meaning.NEITHER, Meaning.NEED), strict=True):
            truth, ours = row[f"alone_{key.quantity}"], ours_of(device, key.quantity)
            yield Case.of(key, truth, ours, meaning, now())


def logs(options: Options) -> Iterator[Case]:
    """Public logs of compiled training; the phantom's figures are kept in results.json."""
    results = read_results()
    run = now() if options.has_programs else recorded("accuracy-logs")
    for row in read_rows():
        for number, (allocated, reserved) in enumerate(
            zip(row.allocated_mib, row.reserved_mib, strict=True), 1
        ):
            keys = [
                Key("logs", f"{row.name}, run {number}", what) for what in ("allocated", "reserved")
            ]
            if row.name not in results:
                yield from without(keys, NOT_RUN, "needs a checkout of parameter-golf (--programs)")
                continue
            yield from _of_log(keys, results[row.name], allocated, reserved, run)


def _of_log(
    keys: list[Key], result: Result, allocated: int, reserved: int, run: str
) -> Iterator[Case]:
    """A run of a log: what is allocated with Inductor's cache warm and cold, and the reserved
    peak, in whole MiB.
    """
    warm, cold = sorted((result.warm_mib, result.allocated_mib))
    yield Case.of(
        keys[0], allocated * MIB, (warm * MIB, cold * MIB, cold * MIB), Meaning.NEITHER, run,
        is_inside=result.gap(allocated) == 0,
    )  # fmt: skip
    likely = None if result.reserved_mib is None else result.reserved_mib * MIB
    yield Case.of(
        keys[1], reserved * MIB, (result.low_bytes, likely, result.high_bytes), Meaning.NEED, run,
        is_inside=result.holds(reserved),
    )  # fmt: skip


def readings(_: Options) -> Iterator[Case]:
    """What nvidia-smi printed in public logs as training began, by machine. No verdict follows: it
    is not known what else was on the GPU.
    """
    for row in contexts.score(contexts.read()):
        machine, interval = row.machine, row.interval
        counts = Counter[int]()
        for reading in row.readings:
            counts[reading.mib] += reading.count
        for mib, count in sorted(counts.items()):
            name = f"{machine.gpu}, {machine.num_ranks} ranks, NCCL {machine.nccl}, {mib} MiB"
            ends = (round(interval.low * MIB), None, round(interval.high * MIB))
            yield Case.of(
                Key("readings of devices", name, row.what), mib * MIB, ends, Meaning.NEITHER, now(),
                is_inside=mib in interval, note=f"read {count} times",
            )  # fmt: skip


QUANTITIES: Final = {
    "ALLOC": ("allocated", Meaning.NEITHER),
    "RES": ("reserved", Meaning.NEED),
    "DEV": ("device", Meaning.NEED),
    "STATES": ("optimizer states", Meaning.NEITHER),
    "ACTS": ("activations", Meaning.NEITHER),
    "RISE": ("rise of a step", Meaning.NEITHER),
    "FIT": ("verdict", Meaning.NEITHER),
}


RAN: Final = ("ALLOC", "RES", "DEV")
"""Quantities that a running job told; others may follow from a paper's arithmetic."""


def estimates(_: Options) -> Iterator[Case]:
    """Published figures of training, and `ullage estimate`."""
    for row in published.read_rows():
        what, meaning = QUANTITIES[row.quantity]
        key = Key("estimates", f"{row.source}: {row.id}", what)
        if row.did_fit is not None:
            yield Case.of_verdict(key, did_fit=row.did_fit, fits=row.fits, run=now())
            continue
        case = Case.of(
            key, row.measured or 0, (row.low, row.likely, row.high), meaning, now(),
            is_inside=row.is_inside,
        )  # fmt: skip
        if not row.is_scored:  # nothing follows where the recipe is not known
            key = key._replace(source="estimates, recipe not stated in full")
            case = replace(case, key=key, is_wrong_fit=None, is_false_alarm=None, note=row.recipe)
        elif row.fits is False and row.quantity in RAN:
            case = replace(case, is_false_alarm=True, note="said not to fit")
        yield case
