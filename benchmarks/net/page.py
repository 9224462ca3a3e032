"""The page of what caught each mutant: docs/results/tests.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.net.choice import SEED, Mutant
from benchmarks.provenance import made_by

_TIERS = {
    "test": "`make test`",
    "all": "`make test-all` alone",
    "none": "neither",
    "later": "not `make test`; `make test-all` was not run",
}


def render(mutants: Sequence[Mutant]) -> str:
    """The page of a table."""
    tried = [mutant for mutant in mutants if mutant.tier]
    kinds = {
        "edits of a line": [mutant for mutant in tried if not mutant.is_mend],
        "mends taken back": [mutant for mutant in tried if mutant.is_mend],
        "all": tried,
    }
    return f"""# How sharp the tests are

{made_by(f"benchmarks.net --count {len(mutants)}")}

Each mutant is the last commit with one fault in src. Half are edits of a line that some test
executes (a constant, a comparison, a branch, a sum, or a statement that is dropped), drawn with the
seed {SEED} and spread by size of package. Half are mends of the history that are taken back, with
the tests as they are today. Each runs the cases of `make test` until one fails, the nearest files
first; what passes runs those of `make test-all`, in its first environment. A test that fails and
then passes alone is not believed the first time. A run of more than three times the usual length is
a failure. [net.csv](net.csv) has every mutant, and the test that caught it.

| mutants | tried | {" | ".join(_TIERS.values())} |
|---|--:|--:|--:|--:|
{chr(10).join(_row(name, of_kind) for name, of_kind in kinds.items())}

{_say_share(tried)}

## What `make test` did not catch

{chr(10).join(_uncaught(tried)) or "Nothing."}
"""


def share_caught(mutants: Sequence[Mutant]) -> tuple[int, int]:
    """How many `make test` catches, of how many `make test-all` does, which runs its cases too.
    Those that wait for test-all count as caught by it: the share is at least this.
    """
    by_test = sum(mutant.tier == "test" for mutant in mutants)
    return by_test, by_test + sum(mutant.tier in ("all", "later") for mutant in mutants)


def _row(name: str, mutants: Sequence[Mutant]) -> str:
    counts = [sum(mutant.tier == tier for mutant in mutants) for tier in _TIERS]
    return f"| {name} | {len(mutants)} | {' | '.join(map(str, counts))} |"


def _say_share(tried: Sequence[Mutant]) -> str:
    by_test, by_all = share_caught(tried)
    if not by_all:
        return "No mutant was caught yet."
    seconds = statistics.median(mutant.seconds for mutant in tried if mutant.tier == "test")
    return (
        f"Of {by_all} mutants that `make test-all` catches, or that wait for it, `make test` "
        f"catches {by_test} ({100 * by_test / by_all:.0f} %), half of them within {seconds:.0f} s."
    )


def _uncaught(tried: Sequence[Mutant]) -> Iterator[str]:
    for mutant in tried:
        if mutant.tier == "test":
            continue
        fault = mutant.before
        if not mutant.is_mend:
            fault = f"{mutant.file}:{mutant.line}, `{mutant.before}` became `{mutant.after}`"
        case = f"`{mutant.case}`" if mutant.tier == "all" else "nothing"
        if mutant.tier == "later":
            case = "nothing yet"
        yield (
            f"- **{mutant.name}**: {fault}. Caught by {case}. "
            f"Added: {mutant.added or 'nothing yet'}."
        )
