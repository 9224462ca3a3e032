"""What a step had changed before it ran out of memory is put back, or the step is refused by name:
trainings that are drawn from docs/reference/guard-state.md.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

import pytest
from tests.phantom.alone import printed_by

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "guard-state.md"
DAY_SEED = 36
SHARES = 8
NUM_A_SHARE = 26
LEAST_RESTORED, LEAST_OF_A_SHARE = 0.7, 0.5

End = tuple[str, str, str, str, str, str]


def expected_ends() -> dict[str, str]:
    """What the table says of each kind and each way."""
    rows = re.findall(r"^\| ([^|]+) \|(?: [^|]+ \|)? ([^|]+) \|$", PAGE.read_text("utf-8"), re.M)
    return {kind: end for kind, end in rows if kind not in ("kind", "what the step does")}


def ends(python: Path, seed: int, count: int, first: int = 0) -> list[End]:
    """How programs of a seed ended."""
    words = (str(seed), str(count), str(first))
    return [(*each,) for each in printed_by(python, "guard/states.py", *words)]


def check(ended: Iterable[End]) -> None:
    """None trained otherwise, and each ended as the table says."""
    expected = expected_ends()
    wrong = []
    for kind, place, change, moment, error, end in ended:
        says = expected.get(kind, "nothing")
        may_be_restored = says.startswith("restored")
        may_be_refused = "refused" in says
        is_right = (
            (end == "restored" and may_be_restored)
            or (end.startswith("refused: ") and may_be_refused)
            or (end == "restored" and "if reassigned" in says)
        )
        if not is_right:
            wrong.append((kind, place, change, moment, error, end, says))
    assert not wrong, "\n".join(map(str, wrong))


def table_of(ended: Iterable[End]) -> str:
    """How many programs of each kind were restored."""
    counts, restored = Counter(), Counter()  # type: ignore[var-annotated]
    for kind, *_, end in ended:
        counts[kind] += 1
        restored[kind] += end == "restored"
    return "\n".join(f"{kind}: {restored[kind]} of {count}" for kind, count in counts.items())


def share_restored(ended: Collection[End]) -> float:
    """Of the programs."""
    return sum(end == "restored" for *_, end in ended) / len(ended)


@pytest.mark.parametrize("share", range(SHARES))
def test_a_step_that_changed_state_is_run_again_bit_for_bit_or_refused(
    thin_python: Path, share: int
) -> None:
    ended = ends(thin_python, DAY_SEED, NUM_A_SHARE, share * NUM_A_SHARE)
    check(ended)
    print(table_of(ended))
    assert share_restored(ended) >= LEAST_OF_A_SHARE, table_of(ended)


@pytest.mark.nightly
def test_programs_of_the_day_are_run_again_bit_for_bit_or_refused(thin_python: Path) -> None:
    seed = datetime.date.today().toordinal()  # another one each night
    ended = ends(thin_python, seed, 400)
    print(f"seed {seed}\n{table_of(ended)}")
    check(ended)
    assert share_restored(ended) >= LEAST_RESTORED


def test_the_table_has_every_kind_and_every_way_that_is_tried(thin_python: Path) -> None:
    tried = printed_by(thin_python, "guard/states.py", "names")
    assert sorted(tried) == sorted(expected_ends())
