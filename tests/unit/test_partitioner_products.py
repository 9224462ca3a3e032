"""Which products of a block are worth keeping, and which plan takes no more memory than torch:
benchmarks/plans/partitioner*.py.
"""

import itertools

import numpy as np
from benchmarks.plans.partitioner import best, corrected
from benchmarks.plans.partitioner_page import Taken
from benchmarks.plans.partitioner_products import Cost, sets_worth_keeping, settings

from ullage.search.costs.profile import Profile, Stretch
from ullage.search.solver.problem import Problem

STRETCH = Stretch("backward", 0)
# Of each product: bytes that a block keeps for it, operations that compute it again. Backward does
# not need the last.
PRODUCTS = ((30, 60.0), (10, 4.0), (10, 20.0), (40, 79.0), (15, 0.0))
NUM_BLOCKS, INPUTS, REST, FLOPS = 2, 20, 1000, 500.0


def cost(kept: tuple[int, ...]) -> Cost:
    """Of two blocks that keep these products; what is not kept is in the way in backward."""
    num_bytes = INPUTS + sum(PRODUCTS[one][0] for one in kept)
    gone = [each for place, each in enumerate(PRODUCTS) if place not in kept]
    profile = Profile(
        np.full(NUM_BLOCKS, num_bytes, dtype=np.int64),
        {STRETCH: REST + sum(each[0] for each in gone)},
        {},
        0,
    )
    flops = FLOPS + NUM_BLOCKS * sum(each[1] for each in gone)
    return Cost(profile, flops)


def found() -> dict[tuple[int, ...], Cost]:
    """The sets that are worth keeping."""
    every = tuple(range(len(PRODUCTS)))
    without = [cost(tuple(set(every) - {one})) for one in every]
    return dict(sets_worth_keeping(cost(every), without, cost(())))


def test_costs_of_several_products_are_added_up() -> None:
    for kept, one in found().items():
        wanted = cost(kept)
        assert one.flops == wanted.flops
        assert one.profile.kept_bytes.tolist() == wanted.profile.kept_bytes.tolist()
        assert one.profile.rest_bytes == wanted.profile.rest_bytes


def test_they_are_those_that_no_other_set_beats() -> None:
    every = range(len(PRODUCTS))
    all_sets = [
        cost(kept)
        for num in range(len(PRODUCTS) + 1)
        for kept in itertools.combinations(every, num)
    ]
    points = {(one.kept_bytes, one.flops) for one in all_sets}
    unbeaten = {
        (size, flops)
        for size, flops in points
        if not any(
            other != (size, flops) and other[0] <= size and other[1] <= flops for other in points
        )
    }
    assert {(one.kept_bytes, one.flops) for one in found().values()} == unbeaten


def test_what_backward_does_not_need_is_never_kept() -> None:
    assert not any(len(PRODUCTS) - 1 in kept for kept in found())


def test_those_that_keep_most_come_first() -> None:
    sizes = [one.kept_bytes for one in found().values()]
    assert sizes == sorted(sizes, reverse=True)
    assert next(reversed(found())) == ()


def test_a_set_is_a_setting_of_a_technique() -> None:
    assert settings((0, 2)) == ("selective_checkpoint", {"saves": "0,2"})
    assert settings(()) == ("checkpoint", {})


def test_what_was_seen_of_all_blocks_alike_corrects_what_was_added_up() -> None:
    # Of three blocks and the loss after them: a block as it is, and kept with two sets of products.
    problem = Problem(
        kept_bytes=np.array([[10, 5, 1]] * 3),
        extra_s=np.zeros((3, 3)),
        liveness=np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]], dtype=np.float64),
        own=np.array([0, 1, 2, -1]),
        rest_bytes=np.array([[20, 20, 20]] * 3 + [[5, 5, 5]]),
    )
    alike = {(1,) * 3: Taken(35, 2 * 10**12, 0.0), (2,) * 3: Taken(20, 4 * 10**12, 0.0)}
    found = corrected(problem, alike, Taken(40, 10**12, 0.0))
    assert [found.peak_bytes(np.full(3, kind)) for kind in range(3)] == [40, 35, 20]
    assert [found.time_s(np.full(3, kind)) for kind in range(3)] == [0.0, 1.0, 3.0]


def test_the_plan_is_that_which_computes_least_of_those_that_take_no_more() -> None:
    seen = {(0,): Taken(40, 10, 1.0), (1,): Taken(30, 12, 1.0), (2,): Taken(30, 12, 0.5)}
    assert best(seen, Taken(39, 99, 0.0)) == (2,)
    assert best(seen, Taken(40, 0, 0.0)) == (0,)
    assert best(seen, Taken(29, 0, 0.0)) is None
