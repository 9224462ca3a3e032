"""Counts the tokens of a text: with the model's tokenizer, else as many as it can have.

count = make_counter({"llama-3.1-8b": Path("tokenizer.json")}, characters_per_token=3.0)
count("llama-3.1-8b", "Hello")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ullage.ground.errors import EnvironmentProblem, SpecError


def make_counter(
    files: Mapping[str, Path], characters_per_token: float
) -> Callable[[str, str], int]:
    """A function of a model and a text.

    Args:
        files: of tokenizers, by model.
        characters_per_token: of a model without one.

    Raises:
        EnvironmentProblem: the library tokenizers is not installed, and a file is given.
        SpecError: a file is not a tokenizer's.
    """
    tokenizers = {model: _open(path) for model, path in files.items()}

    def count(model: str, text: str) -> int:
        tokenizer = tokenizers.get(model)
        if tokenizer is None:
            # In bytes, as a character of Chinese or an emoji can be a token or more by itself.
            return math.ceil(len(text.encode("utf-8", "surrogatepass")) / characters_per_token)
        return len(tokenizer.encode(text))

    return count


def _open(path: Path) -> Any:  # noqa: ANN401 - of a library that is not always there
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise EnvironmentProblem(
            "a tokenizer is configured, and the library tokenizers is not installed; "
            "install it with: pip install tokenizers"
        ) from None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # what the library raises is an Exception and no more
        raise SpecError(f"the tokenizer {str(path)!r} cannot be read: {error}") from None
