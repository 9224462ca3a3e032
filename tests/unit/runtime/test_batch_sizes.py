"""The sizes of a batch, from whatever has a shape."""

from __future__ import annotations

import numpy as np

from ullage.act.guard.adapting.batch_sizes import batch_sizes


def test_a_tensor_has_elements_and_rows_times_squares() -> None:
    sizes = batch_sizes(np.zeros((8, 512)))
    assert sizes is not None
    assert sizes.sizes == (8 * 512, 8 * 512 * 512)
    assert sizes.program == (2,)


def test_tensors_within_lists_and_mappings_count() -> None:
    sizes = batch_sizes({"ids": np.zeros((2, 3)), "more": [np.zeros(5), 7, "text"]}, None)
    assert sizes is not None
    assert sizes.sizes == (6, 18, 5, 25)
    assert sizes.program == (2, 1)


def test_the_sizes_of_many_tensors_are_added_up() -> None:
    few, many = (batch_sizes([np.zeros((1, 10))] * num) for num in (4, 9))
    assert few is not None and many is not None
    assert few.sizes == (10, 100) * 4
    assert many.sizes == (*(10, 100) * 3, 60, 600)
    assert few.program == many.program


def test_without_a_tensor_there_are_no_sizes() -> None:
    assert batch_sizes(512, "text", [None], {}) is None


def test_an_empty_tensor_is_no_error() -> None:
    sizes = batch_sizes(np.zeros((0, 4)), np.zeros(()))
    assert sizes is not None and sizes.sizes == (0, 0, 1, 1)
