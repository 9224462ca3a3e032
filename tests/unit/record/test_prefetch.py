"""`ullage.prefetch` where it needs no torch."""

from __future__ import annotations

import pytest

import ullage


def test_a_negative_number_of_batches_is_refused() -> None:
    with pytest.raises(ullage.SpecError, match="expected 0 or more"):
        ullage.prefetch([1], ahead=-1)


def test_it_has_the_length_of_its_loader() -> None:
    assert len(ullage.prefetch([1, 2, 3])) == 3
    with pytest.raises(TypeError):
        len(ullage.prefetch(iter([1])))
