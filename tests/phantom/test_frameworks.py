"""A program of another framework is named in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]
PROGRAM = "other_framework/train.py"
SENTENCE = "the program uses JAX without PyTorch"


@pytest.mark.parametrize("options", [(), ("--fails",)])
def test_a_program_of_jax_alone_is_named(run_program: RunProgram, options: tuple[str, ...]) -> None:
    document = run_program(PROGRAM, *options).document
    assert [text for text in document["warnings"] if text.startswith(SENTENCE)]


def test_a_program_that_uses_torch_beside_it_is_not(run_program: RunProgram) -> None:
    outcome = run_program(PROGRAM, "--torch")
    assert outcome.document["devices"]
    assert not [text for text in outcome.document["warnings"] if SENTENCE in text]
