"""The streams of lengths on which a guard that adapts is compared, and the programs."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """A stream of lengths, and the memories at which it is tried.

    Attributes:
        name: of its section.
        what: the stream, and the program where it is another.
        lengths: the tokens of each step's rows.
        memories: of the simulated GPU.
        program: of `PROGRAMS` in adapt_program.py.
    """

    name: str
    what: str
    lengths: tuple[int, ...]
    memories: tuple[str, ...]
    program: str = "fused"


def padded(num: int, rows: int, longest: int, draw: Callable[[], float]) -> tuple[int, ...]:
    """Batches that are padded to the longest of their rows, to multiples of 64 tokens."""

    def draw_batch() -> int:
        lengths = [draw() for _ in range(rows)]
        return 64 * math.ceil(min(longest, max(64.0, *lengths)) / 64)

    return tuple(draw_batch() for _ in range(num))


def long_tail(num: int, middle: float, sigma: float, longest: int) -> tuple[int, ...]:
    """Rows of log-normal lengths, eight a batch."""
    source = random.Random(21)
    return padded(num, 8, longest, lambda: source.lognormvariate(math.log(middle), sigma))


def two_kinds(num: int, rows: int, longest: int) -> tuple[int, ...]:
    """Short rows of log-normal lengths, and one in eight of any length up to the longest."""
    source = random.Random(2026)

    def draw() -> float:
        if source.random() < 1 / 8:
            return source.uniform(64, longest)
        return source.lognormvariate(math.log(150), 0.5)

    return padded(num, rows, longest, draw)


CASES = (
    Case(
        "long tail",
        "rows log-normal, median 300 tokens, sigma 0.9, clipped at 4,096; a batch is padded to its "
        "longest row",
        long_tail(100, 300, 0.9, 4096),
        ("24GiB", "16GiB"),
    ),
    Case(
        "long tail, eager attention",
        "the same with a median of 200, clipped at 1,536, and attention that writes its scores, so "
        "that the need grows with the square of the length",
        long_tail(50, 200, 0.9, 1536),
        ("24GiB",),
        "eager",
    ),
    Case(
        "long tail, rungs that offload",
        "the first stream; rung 1 checkpoints 4 of the 8 blocks and rung 2 all, rung 3 moves the "
        "inputs of 4 checkpoints to the host besides, and rung 4 those of all",
        long_tail(100, 300, 0.9, 4096),
        ("16GiB",),
        "offload",
    ),
    Case(
        "not tuned on",
        "chosen before it was run, and run once: 16 blocks of width 1,280, 32,000 words, 4 rows; "
        "rung n checkpoints 4 n blocks; one row in eight has any length up to 2,048 tokens, the "
        "others are log-normal with a median of 150 and a sigma of 0.5",
        two_kinds(80, 4, 2048),
        ("12GiB",),
        "narrow",
    ),
    Case(
        "sawtooth",
        "256 to 3,840 tokens in steps of 256, three times",
        tuple(range(256, 3841, 256)) * 3,
        ("16GiB",),
    ),
    Case("constant", "1,024 tokens, twenty times", (1024,) * 20, ("16GiB",)),
)
