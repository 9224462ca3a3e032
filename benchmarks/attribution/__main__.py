"""Judge attribution on the reference programs, and write docs/results/explain.md.

python -m benchmarks.attribution --python env-2.15/bin/python

Of several environments each program takes the first that has what it needs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.attribution.judge import Judgement, judge, shuffle
from benchmarks.attribution.programs import GPU, PROGRAMS, Program, missing_packages, run_program
from benchmarks.provenance import made_by, torch_version
from benchmarks.results import publish
from ullage.ground.units import format_bytes

_SHOWN_FRAC = 0.001


@dataclass(frozen=True, slots=True)
class Result:
    """One program judged; `shuffled` against owners dealt out anew."""

    program: Program
    torch: str
    judgement: Judgement
    shuffled: Judgement

    def row(self) -> str:
        """A line of the table."""
        found, dealt = self.judgement, self.shuffled
        return (
            f"| `{self.program.label}` | {self.program.what} | {format_bytes(found.peak_bytes, 1)} "
            f"| {found.category_frac:.2%} | {found.module_frac:.2%} | {found.unknown_frac:.2%} "
            f"| {_wrong(found)} | {dealt.category_frac:.0%}, {dealt.module_frac:.0%} |"
        )


def _wrong(found: Judgement) -> str:
    """What was wrong, down to a thousandth of the peak."""
    wrong = [
        f"{truth} taken for {answer}: {format_bytes(size, 1)}"
        for (truth, answer), size in (*found.wrong_categories, *found.wrong_modules)
        if size >= _SHOWN_FRAC * found.peak_bytes
    ]
    return "; ".join(wrong)


def judge_program(program: Program, pythons: Sequence[Path]) -> Result:
    """Runs and judges one program.

    Raises:
        SystemExit: no environment has what it needs.
    """
    able = [python for python in pythons if not missing_packages(program, python)]
    if not able:
        raise SystemExit(
            f"{program.label} needs {', '.join(program.packages)}; "
            "name an environment that has it with --python"
        )
    with tempfile.TemporaryDirectory(prefix="ullage-attribution-") as directory:
        peak = run_program(program, able[0], Path(directory))
    result = Result(program, torch_version(able[0]), judge(peak), judge(shuffle(peak)))
    print(result.row(), file=sys.stderr, flush=True)
    return result


def render(results: Sequence[Result]) -> str:
    """The page."""
    columns = (
        "program", "what it is", "peak", "category", "module", "not known", "what was wrong",
        "shuffled",
    )  # fmt: skip
    rows = "\n".join(result.row() for result in results)
    versions = ", ".join(sorted({result.torch for result in results}))
    return f"""# Attribution

{made_by("benchmarks.attribution", torch=versions)}

The phantom is one of {GPU}.
Each program of `tests/programs/attribution` records the owners of its storages itself
(`truth.py` there says how). The benchmark compares them with ullage's owners of the blocks that are
live at the peak.

An *activation* is a tensor that autograd saved for backward, also during recomputation, or that a
forward pass returned, or, without gradients, that a later operation read. The memory of a parameter
belongs to the parameter's module. Other memory belongs to the innermost module whose call was
running when it was allocated; in backward, to the module whose call made the node of the graph.

*category* and *module* are the fractions of the peak's bytes with the right owner. *not known* is
the fraction whose owner the program does not know; it counts as wrong. For scratch memory, which an
operation allocates and frees without returning it, both *temporary* and *workspace* count as right.
*shuffled* is the score of the same answers when the true owners are assigned to the blocks at
random. It shows that the benchmark can find errors.

| {" | ".join(columns)} |
|---|---|--:|--:|--:|--:|---|--:|
{rows}
"""


def main() -> None:
    """Judge every program, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, action="append", required=True)
    pythons = [python.absolute() for python in parser.parse_args().python]
    publish("attribution", render([judge_program(program, pythons) for program in PROGRAMS]))


if __name__ == "__main__":
    main()
