"""The tokens of prompts: requests that share blocks share tokens, and no others do.

tokens = make_tokens(7, 1000, vocab_size)
tokens = make_prompt(traffic, index, engine.prompt_of)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ullage.operate.serve.traffic import Traffic

# Every vocabulary has the numbers from here to its end, and few of them end a text.
_FIRST_TOKEN: Final = 100
_LARGEST_BASE: Final = 10_000
_DIGITS: Final = 4


def make_tokens(number: int, count: int, vocab_size: int) -> list[int]:
    """This many tokens, unlike those of any other number from the fourth on.

    Args:
        number: which prompt or block.
        count: how many tokens.
        vocab_size: tokens that the model knows.
    """
    base = min(_LARGEST_BASE, vocab_size - _FIRST_TOKEN)
    digits = [_FIRST_TOKEN + number // base**power % base for power in range(_DIGITS)]
    return (digits + [_FIRST_TOKEN] * (count - len(digits)))[:count]


def make_prompt(
    traffic: Traffic, index: int, prompt_of: Callable[[int, int], list[int]]
) -> list[int]:
    """The tokens of a prompt: equal blocks are equal, and all else is like no other prompt.

    Args:
        traffic: the requests.
        index: of one of them.
        prompt_of: `make_tokens` for the engine's model: a number and a length.
    """
    tokens = int(traffic.prompt_tokens[index])
    row: list[int] = []
    for block in traffic.blocks_of(index).tolist():
        row += prompt_of(int(block), traffic.block_tokens)
    rest = tokens - len(row)
    if rest <= 0:
        return row[:tokens]
    # Another first token than any block has.
    return [*row, _FIRST_TOKEN - 1, *prompt_of(index, rest)[: rest - 1]]
