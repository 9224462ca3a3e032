"""Plant regressions, try harmless changes and repeat, and write docs/results/tests.md.

python -m benchmarks.gate --python env-2.15/bin/python --repetitions 500
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.gate.changes import HARMLESS, REGRESSIONS, Harmless, Planted
from benchmarks.gate.repetition import Repetition, render_repetitions
from benchmarks.gate.trial import GPU, Project, Trial
from benchmarks.provenance import made_by
from benchmarks.results import publish
from ullage.explain.compare.changes import signed
from ullage.ground.units import format_bytes
from ullage.players.phantom.torch_build import find_torch

_MIN_NAMED = 18


def render(
    planted: Sequence[tuple[Planted, Trial]],
    harmless: Sequence[tuple[Harmless, Trial]],
    repeated: Sequence[Repetition],
    torch: str,
) -> str:
    """The page."""
    num_found = sum(trial.state == "exceeded" for _, trial in planted)
    num_named = sum(trial.names(change) for change, trial in planted)
    num_passed = sum(trial.state == "passed" for _, trial in harmless)
    least = format_bytes(planted[0][1].needed_bytes) if planted else ""
    return f"""# What `ullage check` finds, and what it accepts

{made_by("benchmarks.gate", torch=torch)}

The runs are on the phantom of {GPU}. The program is `tests/programs/gate/train.py`, the changes are
in `benchmarks/gate/changes.py`, and the tolerance is the default.

- **Regressions**: {num_found} of {len(planted)} found, {num_named} with the right category and
  module in the first place. Each needs at least {least} more: 1 % of the peak, less than 32 MiB.
- **Harmless changes**: {num_passed} of {len(harmless)} pass.
- **Repetitions** without changes and without the cache: {render_repetitions(repeated)}

| regression | allocated | answer | category | module | right | first reason |
|---|--:|---|---|---|---|---|
{_rows(_planted_row(*pair) for pair in planted)}

| harmless change | allocated | reserved | answer |
|---|--:|--:|---|
{_rows(_harmless_row(*pair) for pair in harmless)}
"""


def _rows(rows: Iterable[str]) -> str:
    return "\n".join(rows)


def _planted_row(change: Planted, trial: Trial) -> str:
    right = "yes" if trial.names(change) else "no"
    reason = trial.reason.replace("|", "\\|").replace("*", "\\*")
    module = trial.module.replace("*", "\\*")
    return (
        f"| {change.name} | {signed(trial.changed_bytes)} | {trial.state} | {trial.category} "
        f"| {module} | {right} | {reason} |"
    )


def _harmless_row(change: Harmless, trial: Trial) -> str:
    changes = (trial.changed_bytes, trial.changed_reserved_bytes)
    allocated, reserved = (signed(one) if one else "same" for one in changes)
    return f"| {change.name} | {allocated} | {reserved} | {trial.state} |"


def main() -> int:
    """Try everything, write the page; 1 if it is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=500)
    arguments = parser.parse_args()
    python = arguments.python.absolute()
    with Project(python) as project:
        planted = [(change, _show(project.plant, change)) for change in REGRESSIONS]
        harmless = [(change, _show(project.try_harmless, change)) for change in HARMLESS]
        repeated: list[Repetition] = []
        with contextlib.suppress(KeyboardInterrupt):  # the page says how many there were by then
            for number in range(arguments.repetitions):
                repeated.append(project.repeat())
                print(f"repetition {number + 1}: {repeated[-1]}", file=sys.stderr, flush=True)
    torch = find_torch(str(python)).version
    publish("check-results", render(planted, harmless, repeated, torch))
    is_good = (
        all(trial.changed_bytes >= trial.needed_bytes for _, trial in planted)
        and all(trial.state == "exceeded" for _, trial in planted)
        and sum(trial.names(change) for change, trial in planted) >= _MIN_NAMED
        and all(trial.state == "passed" for _, trial in harmless)
        and len(repeated) == arguments.repetitions
        and all(one.exit_code == 0 and one.added == (0, 0, 0) for one in repeated)
    )
    return 0 if is_good else 1


def _show(run: Callable[..., Trial], change: Planted | Harmless) -> Trial:
    trial = run(change)
    print(f"{change.name}: {trial.state}, {trial.changed_bytes}", file=sys.stderr, flush=True)
    return trial


if __name__ == "__main__":
    sys.exit(main())
