"""Compare `ullage.largest` with the batch finders of accelerate and Lightning, and write
docs/results/plans.md.

    python -m benchmarks.plans.finders --python ENVIRONMENT/bin/python

What finders.json has already is not measured again; the finders run on the phantom, whose
out-of-memory they catch as they do on a GPU. ENVIRONMENT needs transformers, timm, accelerate and
lightning (benchmarks/stacks.txt).
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import ullage
from benchmarks.provenance import made_by
from benchmarks.results import publish
from ullage.ground.units import format_bytes
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.torch_build import find_torch
from ullage.search.runs.job import make_job, make_options
from ullage.search.runs.trials import Trials
from ullage.verbs.run.options import RunOptions

KEPT = Path(__file__).with_name("finders.json")
PROGRAM = "benchmarks/plans/programs/batch.py"
MODELS = ("gpt2", "resnet50", "vit_base_patch16_224")
STEPS = 3  # of each trial
GPUS = ("rtx-3050-6gb", "t4")
FINDERS = {
    "accelerate": "accelerate `find_executable_batch_size`",
    "power": "Lightning, power",
    "binsearch": "Lightning, binsearch",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One answer: its batch, the trials on the GPU, what it takes, and how long a sample does."""

    name: str
    batch: int | None
    num_trials: int
    num_ooms: int
    used_bytes: int
    sample_s: float
    wall_s: float
    remark: str = ""
    allow: str = ""


def ask_finder(model: str, gpu: str, finder: str, python: str) -> Row:
    """Lets a library look for the batch."""
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "found.json"
        words = [PROGRAM, model, "--finder", finder, "--result", str(result)]
        run = ullage.run(words, gpu=gpu, python=python, stdout_to_stderr=True)
        found = json.loads(result.read_text()) if result.exists() else {"batch": None, "tried": []}
    wall_s = time.monotonic() - started_s
    batch, num_ooms = found["batch"], run.devices[0].totals.num_ooms
    if batch is None:
        return Row(FINDERS[finder], None, 0, num_ooms, 0, 0.0, wall_s, run.report.reason)
    used_bytes, step_s = look(model, gpu, batch, python)
    return Row(
        FINDERS[finder],
        batch,
        len(found["tried"]),
        num_ooms,
        used_bytes,
        step_s / batch,
        wall_s,
        "" if used_bytes else "does not fit: the first steps did, a later one does not",
    )


def look(model: str, gpu: str, batch: int, python: str) -> tuple[int, float]:
    """What the device holds with a batch, 0 if it does not fit, and the seconds of a step."""
    device = choose_device(gpu)
    words = [PROGRAM, model, "--batch", str(batch)]
    job = make_job(
        words, device=device, python=python, options=make_options(RunOptions([], time=True))
    )
    unlimited = replace(device, is_unlimited=True)
    with Trials(job) as trials:
        limited, free = trials.run([job, replace(job, device=unlimited)])
    used = limited.devices[0].peak_used_bytes if limited.verdict.value == "fits" else 0
    return used, 0.0 if free.time is None else free.time.step.s


def ask_ullage(model: str, gpu: str, python: str, allow: str) -> list[Row]:
    """The largest as it is, under a plan, and what is fastest for each sample."""
    found = ullage.largest(
        [PROGRAM, model, "--batch", "{batch}"], gpu=gpu, python=python, steps=STEPS, allow=allow
    )
    report = found.report
    wanted = {"ullage, as it is": report.as_it_is}
    if allow != "none":
        wanted |= {"ullage, the largest": report.best, "ullage, the fastest": report.fastest}
    return [
        Row(
            name,
            one.size,
            num_trials=0,
            num_ooms=0,
            used_bytes=one.seen.used_bytes,
            sample_s=one.unit_s,
            wall_s=report.wall_s,
            remark=one.name if one.actions else "",
            allow=allow,
        )
        for name, one in wanted.items()
        if one is not None
    ]


def render(kept: Mapping[str, Sequence[Row]], torch: str) -> str:
    """The page."""
    parts = [_table(name, rows) for name, rows in kept.items()]
    return f"""# Batch finders



{made_by("benchmarks.plans.finders", torch=torch)}

The finders run on the phantom and catch its out-of-memory errors as on a GPU. *out of memory*
counts the requests that the allocator refused. *peak* is that of the whole device. *a sample* is
the predicted time of a step, divided by the batch. *seconds*: of all of ullage's answers together,
beside much other work.

Each finder has its defaults. accelerate starts at 128 and multiplies by 0.9 after an out-of-memory
error, so it never finds more than 128. Lightning starts at 2 and doubles; with binsearch it then
halves the interval and subtracts 5 %.

{_missing(kept)}{chr(10).join(parts)}"""


def _missing(kept: Mapping[str, Sequence[Row]]) -> str:
    """Which tables there are not."""
    names = [f"{model} on {gpu}" for model, gpu in itertools.product(MODELS, GPUS)]
    left = [name for name in names if name not in kept]
    return f"Not measured yet: {', '.join(left)}.\n\n" if left else ""


def _table(name: str, rows: Sequence[Row]) -> str:
    lines = [
        f"## {name}",
        "",
        "| | batch | trials on the GPU | out of memory | peak | a sample | seconds | plan |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for one in rows:
        peak = format_bytes(one.used_bytes, 2) if one.used_bytes else ""
        time_ms = f"{1e3 * one.sample_s:.2f} ms" if one.sample_s else ""
        batch = "none" if one.batch is None else str(one.batch)
        lines.append(
            f"| {one.name} | {batch} | {one.num_trials} | {one.num_ooms} | {peak} | {time_ms} | "
            f"{one.wall_s:.0f} | {one.remark} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    """Measures what is not kept yet, and writes the page after each table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True)
    parser.add_argument("--allow", default="same", help="none: without plans, in a few runs")
    args = parser.parse_args()
    torch = find_torch(args.python).version
    kept = {}
    if KEPT.exists():
        told = json.loads(KEPT.read_text(encoding="utf-8"))
        kept = {name: [Row(**one) for one in rows] for name, rows in told.items()}
    for model, gpu in itertools.product(MODELS, GPUS):
        name = f"{model} on {gpu}"
        rows = kept.get(name, [])
        if args.allow in {one.allow for one in rows}:
            continue
        if not any(not one.allow for one in rows):
            rows = [ask_finder(model, gpu, finder, args.python) for finder in FINDERS]
            _keep({**kept, name: rows}, torch)
        rows = [one for one in rows if not one.allow]
        kept[name] = [*rows, *ask_ullage(model, gpu, args.python, args.allow)]
        print(_table(name, kept[name]), flush=True)
        _keep(kept, torch)


def _keep(kept: Mapping[str, Sequence[Row]], torch: str) -> None:
    """Writes what was measured, and the page."""
    text = json.dumps({key: [asdict(one) for one in value] for key, value in kept.items()})
    KEPT.write_text(text + "\n", encoding="utf-8")
    publish("batch-finders", render(kept, torch))


if __name__ == "__main__":
    main()
