"""docs/results/programs.md: the table of the programs of the wild."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.provenance import made_by
from benchmarks.wild.measure import GPU, STEPS, Outcome, Result
from benchmarks.wild.program import Origin, WildProgram
from ullage.ground.units import format_bytes

_TARGET = 42
_ORIGINS = {
    Origin.COMMAND: "the package's own command",
    Origin.PACKAGE: "written around the package",
    Origin.AFTER: "written after the repository's documentation",
}


def render(pairs: Sequence[tuple[WildProgram, Result]]) -> str:
    """The page, of the programs that have been run."""
    results = [result for _, result in pairs]
    whole = sum(result.has_run_to_its_end for result in results)
    agreeing = sum(result.agrees for result in results)
    wrong = sum(result.is_wrong_fit for result in results)
    versions = " and ".join(sorted({result.torch for result in results} - {"-"}))
    rows = "\n".join(_row(number, *pair) for number, pair in enumerate(pairs, 1))
    causes = "\n".join(f"- **{r.name}**: {_cause(r)}" for r in results if not r.is_as_expected)
    failed = f"## Unexpected results\n\n{causes}\n" if causes else ""
    return f"""# Programs written by others

{made_by("benchmarks.wild", torch=versions)}

Each program runs on an {GPU} to its end, and again with `--steps {STEPS}`. Weights and data are
random; nothing is downloaded. *origin* is {_origins()}.
*whole* is the verdict of the run to the end. *--steps* is the verdict of the stopped run, or
"stopped early" if it reached no training step and says so. *steps* are the training steps of the
whole run.

**{whole} of {len(results)} run to their end (at least {_TARGET} are asked for), {agreeing} have \
the same verdict with --steps or say that they were stopped early, {wrong} wrong "fits".**

| | program | of | origin | version | command | whole | --steps {STEPS} | steps | peak |
|--:|---|---|---|---|---|---|---|--:|--:|
{rows}

{failed}"""


def _origins() -> str:
    return ", ".join(f"*{origin.value}*: {text}" for origin, text in _ORIGINS.items())


def _row(number: int, program: WildProgram, result: Result) -> str:
    peak = result.whole.peak_bytes
    cells = (
        number, program.name, program.model, program.origin.value,
        f"{program.packages[0]} {result.version}", f"`{_command(program)}`",
        result.whole.verdict, _stopped(result.stopped), result.whole.num_training_steps,
        "-" if peak is None else format_bytes(peak, 2),
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def _command(program: WildProgram) -> str:
    """The words after `--`, without the options of a long command."""
    words = program.run[:2]
    return " ".join(words) + (" ..." if len(program.run) > len(words) else "")


def _stopped(outcome: Outcome) -> str:
    return "stopped early" if outcome.is_stopped_early else outcome.verdict


def _cause(result: Result) -> str:
    """One sentence, whichever run it is about."""
    if not result.has_run_to_its_end:
        return f"{result.whole.verdict}: {_plain(result.whole.cause or result.whole.reason)}"
    if result.stopped.cause is not None:
        return f"with --steps {result.stopped.verdict}: {_plain(result.stopped.cause)}"
    return f"{result.whole.verdict}, but with --steps {result.stopped.verdict}"


def _plain(text: str) -> str:
    """A message as one line of Markdown."""
    escaped = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return f"{escaped}" if escaped.endswith(".") else f"{escaped}."
