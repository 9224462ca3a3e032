"""Programs that are drawn, of which the right verdict follows from adding up what they ask for.

A program has one to three processes, each of which takes memory of one or two GPUs. It runs on GPUs
with a little less than the fullest of them needs; its twin, the same program, has a little more.
The seed is the commit's, and no program is thrown away: one that is refused, or that ends in
another way, counts as wrong. What a process's context takes is the catalogue's upper end.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.truth.case import FAILED, Case, Key
from benchmarks.truth.options import BY_NIGHT, ROOT, Options, now
from ullage.players.phantom.device import choose_device

NUM_PROGRAMS: Final = 60
GPU: Final = "rtx-4090"
PROGRAM: Final = Path(__file__).with_name("drawn_program.py")
MIB: Final = 1 << 20
PIECE_MIB: Final = 64
_TIMEOUT_S: Final = 120

PROCESSES: Final = ("alone", "torchrun", "started by another")
DEVICES: Final = ("the first", "one each", "a visible one each", "two each")
TAKEN: Final = ("whole", "pieces", "parameters", "a graph", "uncached", "expandable", "async")
CAUGHT: Final = ("not", "and lost", "and halved", "at the end")
_VARIABLES: Final = {
    "uncached": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}


@dataclass(frozen=True, slots=True)
class Plan:
    """A program.

    Attributes:
        processes, devices, taken, caught: a value of each list.
        shares: of each rank, [device as the process counts, MiB].
    """

    processes: str
    devices: str
    taken: str
    caught: str
    shares: list[list[tuple[int, int]]]

    @property
    def words(self) -> str:
        """What is drawn, in a line."""
        ways = f"{self.processes}, GPU: {self.devices}, {self.taken}, caught: {self.caught}"
        return f"{ways}, {self.shares} MiB"

    def need_mib(self, context_mib: int) -> int:
        """What the fullest GPU has to have, with a context of each process that uses it."""
        is_apart = self.devices == "a visible one each"
        needs: Counter[int] = Counter()
        for rank, share in enumerate(self.shares):
            for device, num_mib in share:
                needs[rank if is_apart else device] += num_mib + context_mib
        return max(needs.values())


def draw(seed: str) -> Iterator[tuple[Plan, int, int]]:
    """Programs, with how many MiB too few and to spare its GPUs have: every value of every list
    comes in turn, in drawn order.
    """
    chance = random.Random(seed)
    columns = [_in_turn(chance, values) for values in (PROCESSES, DEVICES, TAKEN, CAUGHT)]
    for processes, devices, taken, caught in zip(*columns, strict=True):
        ranks = range(1 if processes == "alone" else chance.choice((2, 3)))
        places = {
            "the first": [[0] for _ in ranks],
            "one each": [[rank] for rank in ranks],
            "a visible one each": [[0] for _ in ranks],
            "two each": [[0, 1] for _ in ranks],
        }[devices]
        shares = [
            [(device, PIECE_MIB * chance.randint(12, 120)) for device in place] for place in places
        ]
        plan = Plan(processes, devices, taken, caught, shares)
        yield plan, chance.choice((1, 2, 8)) * PIECE_MIB, chance.choice((2, 3)) * PIECE_MIB


def _in_turn(chance: random.Random, values: Sequence[str]) -> list[str]:
    drawn = [values[number % len(values)] for number in range(NUM_PROGRAMS)]
    chance.shuffle(drawn)
    return drawn


def drawn_programs(options: Options) -> Iterator[Case]:
    """The verdict of each, beside what follows from the sum."""
    python = options.python_of("2.15.")
    head = ("git", "-C", str(ROOT), "rev-parse", "HEAD")
    seed = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
    context_mib = -(-choose_device(GPU).gpu.context_high_bytes // MIB)
    for number, (plan, missing_mib, spare_mib) in enumerate(draw(seed), 1):
        need_mib = plan.need_mib(context_mib)
        # One that asks for half where it gets nothing has done its work in the end.
        is_saved = plan.caught == "and halved"
        for kind, memory_mib, fits in (
            ("over", need_mib - missing_mib, is_saved),
            ("twin", need_mib + spare_mib, True),
        ):
            key = Key(f"drawn programs, {kind}", str(number), "verdict")
            if not options.is_night or python is None:
                reason = options.needs("2.15.") if options.is_night else BY_NIGHT
                yield Case.without(key, "not run", reason)
                continue
            work = options.work / f"drawn-{number}-{kind}"
            verdict = run(plan, memory_mib, python, work)
            if verdict in ("fits", "out_of_memory"):
                case = Case.of_verdict(key, did_fit=fits, fits=verdict == "fits", run=now())
                yield replace(case, note=plan.words)
            else:
                yield Case.without(key, FAILED, f"{verdict}: {plan.words}")


def run(plan: Plan, memory_mib: int, python: Path, work: Path) -> str:
    """The verdict, or what was said instead."""
    work.mkdir(parents=True)
    path = work / "plan.json"
    path.write_text(json.dumps(asdict(plan)))
    num_ranks = len(plan.shares)
    launch = (
        ["torchrun", "--nproc-per-node", str(num_ranks)] if plan.processes == "torchrun" else []
    )
    command = [
        sys.executable, "-c", "from ullage.cli import main; main()", "run", "--json",
        "--gpu", GPU, "--gpus", "3", "--memory", f"{memory_mib}MiB", "--python", str(python), "--",
        *launch, str(PROGRAM), str(path),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=work, env={**os.environ, **_VARIABLES.get(plan.taken, {})},
            capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
        return str(json.loads(done.stdout)["verdict"])
    except subprocess.TimeoutExpired:
        return f"took more than {_TIMEOUT_S} s"
    except (ValueError, KeyError):
        return f"exit code {done.returncode}: {done.stderr[-200:]}"
