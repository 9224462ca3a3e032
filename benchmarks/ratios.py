"""Compare how much processor time ullage takes with the committed table.

    python -m benchmarks.ratios            # print both side by side; exit code 1: a ratio rose
    python -m benchmarks.ratios --write    # make what is measured the table, and write its page

Each figure is a ratio of the processor seconds of two commands, children included. The commands ran
in turn on one machine, so its speed and its other work change both of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.front.load import STUB, alternate
from benchmarks.front.processes import (
    free_port,
    front,
    processor_s,
    program,
    stub_arguments,
    write_front,
)
from benchmarks.provenance import made_by, torch_version
from benchmarks.results import publish
from benchmarks.speed.generate import generate_snapshot
from benchmarks.speed.measure import Command, interleave

ROOT: Final = Path(__file__).parents[1]
TABLE: Final = Path(__file__).with_suffix(".json")
PYTHON: Final = ROOT / ".envs" / "torch-newest" / "bin" / "python"
GPT2: Final = str(ROOT / "examples" / "gpt2" / "train.py")
SWEPT: Final = (1, 2, 4, 8, 16, 24, 32, 48)
NUM_EVENTS: Final = 1_000_000  # 240 MB
NUM_REQUESTS: Final = 1000
NUM_ROUNDS: Final = 10
MAX_RISE_FRAC: Final = 0.10

IMPORT: Final = "`import torch`"
RUN: Final = "`ullage run` of GPT-2 124M, 3 steps"
EMPTY: Final = "`ullage run` of an empty script"
ESTIMATE: Final = "`ullage estimate` of Llama 3.1 8B"
EXPLAIN: Final = "`ullage explain` of a snapshot of 240 MB"
SWEEP: Final = f"`ullage run --sweep` of {len(SWEPT)} batch sizes of GPT-2"
FRONT: Final = f"`ullage front`, {NUM_REQUESTS:,} requests"
DIRECT: Final = "their client and their stub engine"
PAIRS: Final = (
    (RUN, IMPORT), (EMPTY, IMPORT), (ESTIMATE, IMPORT), (EXPLAIN, IMPORT), (SWEEP, RUN),
    (FRONT, DIRECT),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ratio:
    """A row of the table.

    Attributes:
        what: the command that is watched.
        over: the command that it is compared with.
        ratio: the median, over the rounds, of the quotients of their processor seconds.
        low: the quotient of the lowest round.
        high: the quotient of the highest round.
        what_s: the median of the processor seconds of `what`, for information.
        over_s: the same of `over`.
    """

    what: str
    over: str
    ratio: float
    low: float
    high: float
    what_s: float
    over_s: float


@dataclass(frozen=True, slots=True)
class Table:
    """The ratios of one measurement, and how it was made."""

    made_by: str
    num_rounds: int
    load: float
    ratios: tuple[Ratio, ...]


def read_table(path: Path = TABLE) -> Table:
    """The committed table."""
    fields = json.loads(path.read_text(encoding="utf-8"))
    return Table(**fields | {"ratios": tuple(Ratio(**row) for row in fields["ratios"])})


def measure(python: Path) -> Table:
    """Measures all pairs; takes about four minutes on a quiet machine."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="ullage-ratios-") as directory:
        scratch = Path(directory)
        timings = interleave(commands(str(python), scratch), scratch, NUM_ROUNDS)
        seconds = {name: [each.processor_s for each in of] for name, of in timings.items()}
        seconds |= measure_front(scratch)
    return Table(
        made_by("benchmarks.ratios", torch=torch_version(python)),
        NUM_ROUNDS,
        round(load, 1),
        tuple(ratio(what, over, seconds) for what, over in PAIRS),
    )


def commands(python: str, scratch: Path) -> dict[str, Command]:
    """The commands as a user types them, and the files that they read."""
    empty, snapshot = scratch / "empty.py", scratch / "snapshot.pickle"
    empty.touch()
    generate_snapshot(snapshot, NUM_EVENTS)
    ullage = str(Path(sys.executable).with_name("ullage"))
    run = (ullage, "run", "--gpu", "h100-80gb", "--python", python)
    gpt2 = (GPT2, "--steps", "3", "--batch-size")
    sweep = f"batch={','.join(map(str, SWEPT))}"
    words = {
        IMPORT: (python, "-c", "import torch"),
        RUN: (*run, "--", *gpt2, "8"),
        EMPTY: (*run, "--", str(empty)),
        ESTIMATE: (ullage, "estimate", "llama-3.1-8b", "--gpu", "h100-80gb", "--length", "4096"),
        EXPLAIN: (ullage, "explain", str(snapshot)),
        SWEEP: (*run, "--sweep", sweep, "--", *gpt2, "{batch}"),
    }
    # Without bytecode each process would compile what it imports, which no user sees twice.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    return {name: Command(of, environment) for name, of in words.items()}


def measure_front(scratch: Path) -> dict[str, list[float]]:
    """Processor seconds of the front's own process in each round, and of client and stub engine.

    Client and engine serve as many requests directly as through the front, in turn: half of their
    seconds are those of the direct ones.
    """
    engine = free_port()
    stub_words = [*stub_arguments(engine, *STUB[:3])[1:], *STUB[3:]]
    port = write_front(scratch, [engine], STUB[0], ["load"], engine_more="metrics = false\n")
    seconds: dict[str, list[float]] = {FRONT: [], DIRECT: []}
    with program(stub_words, engine) as stub, front(scratch, port) as proxy:

        def clocks() -> tuple[float, float]:
            return processor_s(proxy), (processor_s(stub) + time.process_time()) / 2

        for _ in range(NUM_ROUNDS + 1):
            before = clocks()
            asyncio.run(alternate({DIRECT: engine, FRONT: port}, NUM_REQUESTS))
            for name, end_s, begin_s in zip(seconds, clocks(), before, strict=True):
                seconds[name].append(end_s - begin_s)
    return {name: rounds[1:] for name, rounds in seconds.items()}  # the first fills caches


def ratio(what: str, over: str, seconds: Mapping[str, Sequence[float]]) -> Ratio:
    """The row of a pair, of the seconds of each command in each round."""
    quotients = [a / b for a, b in zip(seconds[what], seconds[over], strict=True)]
    medians = statistics.median(seconds[what]), statistics.median(seconds[over])
    figures = statistics.median(quotients), min(quotients), max(quotients), *medians
    return Ratio(what, over, *(round(figure, 4) for figure in figures))


def rise_frac(committed: Ratio, measured: Ratio) -> float:
    """By which fraction a ratio rose; negative: it fell."""
    return measured.ratio / committed.ratio - 1


def compare(committed: Table, measured: Table) -> list[str]:
    """The lines of a text that shows two tables of the same rows side by side."""
    names = [f"{row.what} over {row.over}" for row in committed.ratios]
    width = max(map(len, names))
    lines = [f"{'processor seconds of':<{width}}  committed   measured  change"]
    lines += [
        f"{name:<{width}} {old.ratio:>9.3f}x {new.ratio:>9.3f}x {rise_frac(old, new):>+7.1%}"
        for name, old, new in zip(names, committed.ratios, measured.ratios, strict=True)
    ]
    return [*lines, f"Committed: {committed.made_by}", f"Measured:  {measured.made_by}"]


def failures(committed: Table, measured: Table) -> list[str]:
    """A sentence for each ratio that rose too far."""
    return [
        f"{new.what} takes {new.ratio:.3f} times the processor time of {new.over}, "
        f"{rise_frac(old, new):.0%} more than the committed {old.ratio:.3f} (allowed: less than "
        f"{MAX_RISE_FRAC:.0%}; rounds: {new.low:.3f} to {new.high:.3f}; load of the machine "
        f"before: {measured.load:.1f}). Find the commit that costs it (`git bisect run` takes this "
        "command) and mend it; or, if it is worth its time, commit the new table: "
        "`python -m benchmarks.ratios --write`."
        for old, new in zip(committed.ratios, measured.ratios, strict=True)
        if rise_frac(old, new) >= MAX_RISE_FRAC
    ]


def render(table: Table) -> str:
    """The page."""
    rows = "\n".join(
        f"| {row.what} | {row.over} | **{row.ratio:.2f}x** | {row.low:.2f} to {row.high:.2f} "
        f"| {row.what_s:.2f} s | {row.over_s:.2f} s |"
        for row in table.ratios
    )
    return f"""# Processor time, as ratios

{table.made_by}

Processor seconds of a command and its children, which ran in turn; a ratio is the median of
{table.num_rounds} rounds. Compare the ratios: the seconds depend on the machine, whose load by
other work was {table.load:.1f} before. `make nightly` measures again, and fails where a ratio is
{MAX_RISE_FRAC:.0%} or more above this table.

| command | over | ratio | rounds | command | over |
|---|---|--:|--:|--:|--:|
{rows}

The sweep runs the program of the first row with {", ".join(map(str, SWEPT))} as its batch size. The
front's row is its own process over half of what client and stub engine take.
"""


def main() -> int:
    """Measures, and compares or writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, default=PYTHON, help="the interpreter with torch")
    parser.add_argument("--write", action="store_true", help="write the table and its page")
    options = parser.parse_args()
    committed = None if options.write else read_table()
    if committed and (found := [(row.what, row.over) for row in committed.ratios]) != list(PAIRS):
        raise SystemExit(
            f"{TABLE.name} has the rows {found}, but {list(PAIRS)} are measured; write the table "
            "again: `python -m benchmarks.ratios --write`"
        )
    measured = measure(options.python.absolute())
    if committed is None:
        TABLE.write_text(json.dumps(asdict(measured), indent=1) + "\n", encoding="utf-8")
        publish("ratios", render(measured))
        print(render(measured))
        return 0
    failed = failures(committed, measured)
    print(*compare(committed, measured), *failed, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
