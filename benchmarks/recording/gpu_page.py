"""Write docs/results/truth.md from what benchmarks.recording.gpu left on a machine with a GPU.

python -m benchmarks.recording.gpu_page --from DIR # condense it into gpu.json, beside this file
python -m benchmarks.recording.gpu_page # write the page from gpu.json
"""

import argparse
import csv
import itertools
import json
from pathlib import Path
from typing import Any

from benchmarks.provenance import made_by
from benchmarks.results import publish

HERE = Path(__file__).parent
STORED = HERE / "gpu.json"
PEAKS = ("allocated", "reserved")
MIB = 2**20
_GUARDED = ("model", "step", "twice_without_guard", "ends")
_TECHNIQUE = (
    "model", "technique", "settings", "result", "plain_ms", "ms", "plain_peak_bytes", "peak_bytes",
)  # fmt: skip


def example(place: Path, name: str) -> dict[str, Any]:
    """The peaks of an example, recorded and alone (bytes)."""
    alone = json.loads((place / f"{name}.alone.json").read_text())
    row: dict[str, Any] = {f"alone_{each}": alone[f"{each}_bytes.all.peak"] for each in PEAKS}
    if (place / f"{name}.json").exists():
        device = json.loads((place / f"{name}.json").read_text())["devices"][0]
        row |= {f"recorded_{each}": device[f"peak_{each}_bytes"] for each in PEAKS}
    return row


def samples(place: Path) -> list[dict[str, Any]]:
    """What `ullage watch --json` printed."""
    lines = (place / "watch.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"schema"')]


def watched(place: Path) -> dict[str, Any]:
    """What was seen of the GPU by ullage and by nvidia-smi."""
    rows = samples(place)
    device = rows[0]["devices"][0]
    gaps = sorted(b["time_s"] - a["time_s"] for a, b in itertools.pairwise(rows))
    reader = csv.reader((place / "smi.csv").read_text().splitlines()[1:])
    smi_mib = [int(row[0].split()[0]) for row in reader if row]
    seen_mib = {-(-each["devices"][0]["used_bytes"] // MIB) for each in rows}
    return {
        "gpu": device["name"], "driver": rows[0]["driver_version"], "num_samples": len(rows),
        "median_gap_s": gaps[len(gaps) // 2], "longest_gap_s": gaps[-1],
        "num_jobs": len({job["pid"] for each in rows for job in each["jobs"]}),
        "num_processes": len({
            process["pid"] for each in rows for process in each["devices"][0]["processes"]
        }),
        "unknown": sorted({note["field"] for note in rows[-1]["notes"]}),
        "smi_readings": len(smi_mib),
        "smi_not_seen": len([x for x in smi_mib if x not in seen_mib]),
    }  # fmt: skip


def condense(place: Path) -> dict[str, Any]:
    """All that the page shows."""
    names = sorted(path.name.removesuffix(".alone.json") for path in place.glob("*.alone.json"))
    lines = (place / "guard.jsonl").read_text().splitlines()
    guarded = [json.loads(line) for line in lines]
    return {
        "date": "2026-11-26", "torch": "2.11.0+cu130",
        "examples": {name: example(place, name) for name in names},
        "watch": watched(place),
        "guard": [{key: row[key] for key in _GUARDED} for row in guarded if "ends" in row],
        "techniques": [
            {key: row.get(key) for key in _TECHNIQUE} for row in guarded if "technique" in row
        ],
    }  # fmt: skip


def example_row(name: str, row: dict[str, Any]) -> str:
    """A line of the table of examples."""
    cells = [f"`{name}`", *(f"{row[f'alone_{each}']:,}" for each in PEAKS)]
    if "recorded_allocated" not in row:
        return f"| {' | '.join(cells)} | not ended in 30 s |"
    differences = [row[f"recorded_{each}"] - row[f"alone_{each}"] for each in PEAKS]
    cells.append(
        "equal" if not any(differences) else " ".join(f"{each:+,}" for each in differences)
    )
    return f"| {' | '.join(cells)} |"


def technique_row(row: dict[str, Any]) -> str:
    """A line of the table of techniques."""
    settings = " ".join(f"{key}={value}" for key, value in row["settings"].items())
    result = row["result"] if row["result"] == "equal" else "differs"
    return (
        f"| {row['technique']} {settings} | {result} | {row['plain_peak_bytes'] / MIB:,.0f} | "
        f"{row['peak_bytes'] / MIB:,.0f} | {row['plain_ms']:.0f} | {row['ms']:.0f} |"
    )


def guard_row(row: dict[str, Any]) -> str:
    """A line of the table of guarded steps."""
    ends = "; ".join(f"{number} {end.partition(':')[0]}" for end, number in row["ends"].items())
    twice = row["twice_without_guard"].partition(":")[0]
    return f"| {row['model']} | {row['step']} | {twice} | {ends} |"


def page(stored: dict[str, Any]) -> str:
    """The page."""
    watch = stored["watch"]
    rows = "\n".join(example_row(name, row) for name, row in stored["examples"].items())
    guards = "\n".join(guard_row(row) for row in stored["guard"])
    techniques = "\n".join(technique_row(row) for row in stored["techniques"])
    return f"""# On a real GPU

{made_by("benchmarks.recording.gpu_page")}

What it shows was recorded on {stored["date"]} on one {watch["gpu"]}, driver {watch["driver"]},
with torch {stored["torch"]}, by `python -m benchmarks.recording.gpu`, and is in
`benchmarks/recording/gpu.json`. The GPU was there for 15
minutes; what had no time is said below.

## `ullage record`

Each example once alone, where the program itself was asked for `torch.cuda.memory_stats()` at
its end, and once under `ullage record --mode full`, up to eight processes at a time. Bytes.

| example | allocated, peak | reserved, peak | recorded |
|---|---|---|---|
{rows}

`mlp_phases` resets PyTorch's peak itself, which a record does not follow; the peaks that it
prints are the record's. Where other processes had the GPU, `context` in the report had their
memory, too, as the guide says.

## `ullage watch`

{watch["num_samples"]:,} samples at 10 Hz, {1e3 * watch["median_gap_s"]:.0f} ms apart in the
median and {1e3 * watch["longest_gap_s"]:.0f} ms at most, of {watch["num_processes"]} processes and
{watch["num_jobs"]} recorded jobs. `nvidia-smi` made {watch["smi_readings"]} readings of the used
memory; all but {watch["smi_not_seen"]} are among those of ullage, which sampled at other moments.

**What failed:** the alert for a job that runs out of memory did not come: the program ended
within a tenth of a second after the error, and its state went with it. Since then a job's last
state stays for five seconds (tests/unit/watch/test_jobs.py; on the phantom, not tried again on
a GPU).

## `ullage.guard`

Two models, the third step, under limits of the allocator from the step's peak downwards: real
errors of the real allocator. What the step left is compared bit for bit with a step without a
limit and without a guard.

| model | step | two steps without a guard | with a guard, by limit |
|---|---|---|---|
{guards}

No step was lost. **That they are equal is not shown:** cuDNN's attention is not deterministic by
default, so that two plain steps of the GPT differ as well. The CNN's steps are deterministic and
its first recovery is equal; under lower limits it differs.

## Techniques

Three training steps of the GPT with each technique and without, bit for bit, with the same
caveat: where the result differs, two plain trainings may differ as well. Peaks in MiB, the last
step in milliseconds.

| technique | result | peak without | peak | step without | step |
|---|---|---|---|---|---|
{techniques}

The small model's steps are short, and a technique's first steps are in the figure.

## Not tried

Several GPUs, NCCL, MIG, an hour of `watch`, `record`'s costs.
"""


def main() -> None:
    """Condense a folder, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="place", type=Path)
    place = parser.parse_args().place
    if place is not None:
        STORED.write_text(json.dumps(condense(place), indent=1) + "\n")
    publish("on-gpu", page(json.loads(STORED.read_text())))


if __name__ == "__main__":
    main()
