"""The scratch memory of sums, as PyTorch 2.15 takes it on the phantom."""

from __future__ import annotations

import pytest

from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.machine import Machine
from ullage.players.eager.training.eager.reductions import scratch_of_columns, sum_to
from ullage.players.eager.training.eager.tensor import BFLOAT16, FLOAT32, INT64, empty

H100 = Machine()
A100 = Machine((8, 0), multiprocessors=108)


@pytest.mark.parametrize(
    ("machine", "rows", "columns", "expected"),
    [
        (H100, 4096, 1024, (33_554_432, 32)),  # x.sum((0, 1)) of (4, 1024, 1024)
        (A100, 3000, 1024, (24_641_536, 32)),
        (H100, 8, 1024, ()),
    ],
)
def test_blocks_that_share_an_output_leave_their_sums_in_memory(
    machine: Machine, rows: int, columns: int, expected: tuple[int, ...]
) -> None:
    assert scratch_of_columns(machine, rows, columns, BFLOAT16) == expected
    assert scratch_of_columns(machine, rows, columns, FLOAT32) == expected


def test_wide_numbers_are_left_out() -> None:
    assert scratch_of_columns(H100, 4096, 1024, INT64) == ()


def test_a_sum_over_rows_takes_its_scratch_after_its_result_and_lets_it_go() -> None:
    arena = Arena()
    x = empty(arena, (4, 1024, 1024), BFLOAT16)
    out = sum_to(x, (1024,))
    assert out.shape == (1024,)
    assert arena.log.requested[1:] == [2048, 33_554_432, 32]
    assert ~2 in arena.log.events
    assert ~1 not in arena.log.events


def test_a_shape_that_differs_in_ones_alone_is_a_view() -> None:
    arena = Arena()
    x = empty(arena, (1, 8, 16), BFLOAT16)
    assert sum_to(x, (8, 16)).storage is x.storage
