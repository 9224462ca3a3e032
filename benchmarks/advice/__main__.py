"""Run programs out of memory, take the first remedy of which it is said that it makes them fit,
apply it by hand, and run again; write docs/results/explain.md.

    python -m benchmarks.advice --python env/bin/python [--only gpt2 ...]

The environment needs what examples/requirements.txt lists. A setting and a plan are applied as
`ullage run` takes them, to the program as a whole and not to the steps that were looked at; of a
change of the program the flag that makes it is given, which programs.py describes. Ends with exit
code 1 where a remedy that was said to help did not.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ullage
from benchmarks.advice.programs import PROGRAMS, Program
from benchmarks.provenance import made_by, torch_version
from benchmarks.results import publish
from ullage.act.techniques.plan import Plan
from ullage.explain.remedies import EXPANDABLE, sets_allocator
from ullage.explain.rules.rule import Finding
from ullage.explain.trial import MakesItFit
from ullage.explain.verdict import Verdict
from ullage.ground.units import format_bytes
from ullage.verbs.run.function import run


@dataclass(frozen=True, slots=True)
class Row:
    """One program: what was advised, and what came of it; `helped` is None where nothing was said
    to help.
    """

    name: str
    memory: str
    advised: str
    how: str
    applied: str
    helped: bool | None

    def text(self) -> str:
        """A line of the table."""
        end = {True: "fits", False: "**out of memory**", None: "-"}[self.helped]
        cells = (self.name, self.memory, self.advised, self.how, self.applied, end)
        return f"| {' | '.join(cells)} |"


def try_program(program: Program, python: str) -> Row:
    """Runs a program out of memory, and again with the first remedy that is said to help."""
    device = choose_device(program, python)
    with tempfile.TemporaryDirectory(prefix="ullage-advice-") as directory:
        result = run(
            list(program.argv), python=python, snapshot=Path(directory) / "snapshot.pickle",
            stdout_to_stderr=True, try_remedies=True, **device,
        )  # fmt: skip
    memory = device.get("gpu") or format_bytes(device["memory"])
    if result.verdict is not Verdict.OUT_OF_MEMORY:
        return Row(program.name, memory, f"it ended as {result.verdict.value}", "-", "-", None)
    findings = result.report.processes[0].findings
    fitting = [one for one in findings if one.trial and one.trial.makes_it_fit is MakesItFit.YES]
    if not fitting:
        said = "; ".join(f"{one.rule.code} {one.trial.makes_it_fit.label}" for one in findings
                         if one.trial)  # fmt: skip
        return Row(program.name, memory, said or "nothing found", "-", "-", None)
    first = fitting[0]
    applied, argv, options = apply(program, first)
    again = ullage.run(argv, python=python, stdout_to_stderr=True, **device, **options)
    reason = first.trial.reason if first.trial else ""
    return Row(
        program.name, memory, f"{first.rule.code} {first.rule.title}", reason, applied,
        again.verdict is Verdict.FITS,
    )  # fmt: skip


def choose_device(program: Program, python: str) -> dict[str, Any]:
    """The GPU on which it runs out: the one that is named, or one with memory for the edited
    program and not for the program.
    """
    if program.gpu is not None:
        return {"gpu": program.gpu}
    flags = next(iter(program.edits.values()))[0]
    runs = [
        ullage.run(argv, python=python, stdout_to_stderr=True)
        for argv in (program.argv, [*program.argv, *flags])
    ]
    # What is cached goes before memory runs out: what is allocated decides.
    halfway = sum(run.peak_allocated_bytes for run in runs) // 2
    return {"memory": halfway + runs[0].report.gpu.context_high_bytes}


def apply(program: Program, finding: Finding) -> tuple[str, list[str], dict[str, Any]]:
    """What was done, the program's words then, and the options of the run."""
    argv = list(program.argv)
    trial = finding.trial
    if sets_allocator(finding):
        return EXPANDABLE, argv, {"alloc_conf": EXPANDABLE}
    if trial is not None and trial.plan is not None:
        plan = Plan.parse(json.dumps(dict(trial.plan)))
        return f"the plan: {plan.summary}", argv, {"plan": plan}
    if finding.rule.code not in program.edits:
        return "no edit is described for it", argv, {}
    flags, edit = program.edits[finding.rule.code]
    return edit, [*argv, *flags], {}


def render(rows: list[Row], torch: str) -> str:
    """The page; torch: the version that the programs ran with."""
    said = [row for row in rows if row.helped is not None]
    helped = [row for row in said if row.helped]
    table = "\n".join(row.text() for row in rows)
    return f"""# Does the advice help?

{made_by("benchmarks.advice", torch=torch)}

Each program runs out of memory under `ullage run
--try-remedies`. The benchmark applies the first remedy with "makes it fit: yes" in the report, and
runs the whole program again on the same device. If the device is a size, it is an H100 with memory
halfway between the need of the program and that of its edited copy.

For {len(said)} of {len(rows)} programs the report named a remedy that makes them fit. With it,
{len(helped)} of these {len(said)} did fit.

| program | device | first remedy that makes it fit | by | applied | result |
|---|---|---|---|---|---|
{table}
"""


def main() -> None:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", required=True, help="the interpreter of an environment")
    parser.add_argument("--only", nargs="*", help="programs whose name holds one of these")
    parser.add_argument("--rows", type=Path, help="where rows are kept; what is there is not run")
    args = parser.parse_args()
    kept = json.loads(args.rows.read_text()) if args.rows and args.rows.exists() else []
    done = {row["name"]: Row(**row) for row in kept}
    chosen = [one for one in PROGRAMS if not args.only or any(o in one.name for o in args.only)]
    rows, torch = [], torch_version(Path(args.python))
    for program in chosen:
        rows.append(done.get(program.name) or try_program(program, args.python))
        print(rows[-1].text(), flush=True)
        if args.rows:
            args.rows.write_text(json.dumps([asdict(row) for row in rows], indent=1))
        if not args.only:
            publish("advice", render(rows, torch))
    sys.exit(any(row.helped is False for row in rows))


if __name__ == "__main__":
    main()
