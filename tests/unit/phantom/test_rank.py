"""The variables of a rank are those that torchrun sets; and what is refused before ranks run."""

from __future__ import annotations

from pathlib import Path

import pytest

import ullage
from ullage.ground.errors import SpecError
from ullage.players.phantom.rank import choose_ranks
from ullage.verbs.run import ranks_function as ranks


def test_a_rank_knows_its_node_and_its_place_there() -> None:
    (rank,) = choose_ranks((13,), 64)
    variables = rank.variables()
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    assert [variables[name] for name in names] == ["13", "5", "1", "64", "8"]
    assert variables["GROUP_WORLD_SIZE"] == "8"


def test_a_small_job_is_on_one_node() -> None:
    assert choose_ranks((0,), 2)[0].local_world_size == 2


@pytest.mark.parametrize(
    ("numbers", "world_size", "local", "message"),
    [
        ((8,), 8, None, "there is no rank 8 of 8"),
        ((1, 1), 8, None, "rank 1 was given twice"),
        ((0,), 0, None, "world_size=0"),
        ((0,), 12, 8, "12 ranks cannot be on nodes of 8"),
        ((0,), 8, 0, "nodes of 0"),
    ],
)
def test_ranks_that_cannot_be_are_refused(
    numbers: tuple[int, ...], world_size: int, local: int | None, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        choose_ranks(numbers, world_size, local)


def test_ranks_are_numbers_or_all_that_differ() -> None:
    with pytest.raises(SpecError, match="ranks='all' is not a list of ranks; expected some, or"):
        ullage.run_ranks(["train.py"], ranks="all", world_size=2)
    with pytest.raises(SpecError, match="there is no rank 2 of 2"):
        ullage.run_ranks(["train.py"], ranks=[2, 0], world_size=2)


def test_snapshots_of_other_ranks_are_replaced_only_by_force(tmp_path: Path) -> None:
    directory = tmp_path / "ranks"
    assert ranks._make_directory(directory, force=False) == directory
    old, other = directory / "rank7.pickle", directory / "notes.txt"
    for path in (old, other):
        path.touch()
    with pytest.raises(SpecError, match=r"rank7\.pickle' exists"):
        ranks._make_directory(directory, force=False)
    ranks._make_directory(directory, force=True)
    assert [*directory.iterdir()] == [other]
    with pytest.raises(SpecError, match="cannot be one: File exists"):
        ranks._make_directory(other, force=True)
