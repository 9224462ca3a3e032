"""The requests of a trace, as columns.

    traffic = Traffic.of("mine", arrival_s=[0.0, 0.5], prompt_tokens=[100, 200],
                         output_tokens=[10, 20])
    traffic.blocks_of(0)        # which blocks of the prompt are equal to those of other prompts

A prompt has no text: its length, and where the trace says so which blocks of it other prompts have
too, are what a server's memory depends on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias

import numpy as np
import numpy.typing as npt

from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import Mark, figure

Columns: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests in the order of their arrival.

    Attributes:
        source: the file or the text that they are from.
        arrival_s: seconds since the first moment of the trace, ascending (n,).
        prompt_tokens, output_tokens: tokens of each prompt and of each answer, 1 or more (n,).
        class_index: the class of each request, into `classes` (n,).
        classes: the names by which a report tells requests apart, such as "code"; one or more.
        block_hashes: of all prompts one after another: equal numbers at equal places mean equal
            tokens from the begin of the prompt to the end of that block (m,).
        block_offsets: the blocks of request i are block_hashes[block_offsets[i]:block_offsets[i+1]]
            (n + 1,). None of a request: its prompt is like no other.
        block_tokens: tokens of such a block.
        num_users: a closed loop: this many requests at once, the next when one has its answer;
            arrivals are 0 then. None: requests come when they come.
        think_s: in a closed loop, from an answer to the request after it.
        num_left_out: rows of the file that are not requests, such as failures with an empty answer.
    """

    source: str
    arrival_s: Annotated[npt.NDArray[np.float64], Mark.NO_KEY]
    prompt_tokens: Annotated[Columns, Mark.NO_KEY]
    output_tokens: Annotated[Columns, Mark.NO_KEY]
    class_index: Annotated[Columns, Mark.NO_KEY]
    classes: tuple[str, ...]
    block_hashes: Annotated[Columns, Mark.NO_KEY]
    block_offsets: Annotated[Columns, Mark.NO_KEY]
    block_tokens: Annotated[int, Mark.NO_KEY] = 512
    num_users: int | None = None
    num_left_out: int = 0
    think_s: Annotated[float, Mark.NO_KEY] = 0.0

    def __len__(self) -> int:
        return len(self.arrival_s)

    @classmethod
    def of(
        cls,
        source: str,
        arrival_s: Sequence[float] | npt.NDArray[np.float64],
        prompt_tokens: Sequence[int] | Columns,
        output_tokens: Sequence[int] | Columns,
        *,
        class_names: Sequence[str] | str = "requests",
        blocks: Sequence[Sequence[int]] = (),
        block_tokens: int = 512,
        num_users: int | None = None,
        num_left_out: int = 0,
        think_s: float = 0.0,
    ) -> Traffic:
        """Sorts requests by their arrival; those at the same time stay in order.

        Args:
            class_names: one for all, or one for each.
            blocks: the block hashes of each request; empty: no prompts are alike.

        Raises:
            SpecError: the columns differ in length, a time is not a number or below 0, or a number
                of tokens is below 1.
        """
        arrivals = np.asarray(arrival_s, dtype=np.float64)
        prompts, outputs = (np.asarray(c, dtype=np.int64) for c in (prompt_tokens, output_tokens))
        number = len(arrivals)
        names = [class_names] * number if isinstance(class_names, str) else list(class_names)
        lengths = {len(prompts), len(outputs), len(names), len(blocks) or number}
        if lengths != {number}:
            raise SpecError(f"{source}: columns of {number} and {sorted(lengths)} requests")
        _check(source, arrivals, prompts, outputs)
        order = np.argsort(arrivals, kind="stable")
        classes = tuple(dict.fromkeys(names)) or ("requests",)
        numbers: Mapping[str, int] = {name: index for index, name in enumerate(classes)}
        ordered = [blocks[index] for index in order] if blocks else [()] * number
        offsets = np.zeros(number + 1, dtype=np.int64)
        offsets[1:] = np.cumsum([len(row) for row in ordered], dtype=np.int64)
        return cls(
            source, arrivals[order], prompts[order], outputs[order],
            np.array([numbers[names[index]] for index in order], dtype=np.int64), classes,
            np.array([block for row in ordered for block in row], dtype=np.int64), offsets,
            block_tokens, num_users, num_left_out, think_s,
        )  # fmt: skip

    @figure
    def sums(self) -> Annotated[Mapping[str, int], Mark.FLAT]:
        """The requests and all their tokens."""
        prompts, outputs = self.prompt_tokens.sum(), self.output_tokens.sum()
        return {"num_requests": len(self), "prompt_tokens": prompts, "output_tokens": outputs}

    @figure
    def duration_s(self) -> float:
        """When the last request arrives; 0 without requests."""
        return float(self.arrival_s[-1]) if len(self) else 0.0

    def class_of(self, index: int) -> str:
        """The name of a request's class."""
        return self.classes[int(self.class_index[index])]

    def blocks_of(self, index: int) -> Columns:
        """The block hashes of a request's prompt; empty: it is like no other."""
        return self.block_hashes[self.block_offsets[index] : self.block_offsets[index + 1]]

    def first(self, number: int) -> Traffic:
        """The first `number` requests, or all if there are fewer."""
        number = max(0, min(number, len(self)))
        end = self.block_offsets[number]
        return replace(
            self, arrival_s=self.arrival_s[:number], prompt_tokens=self.prompt_tokens[:number],
            output_tokens=self.output_tokens[:number], class_index=self.class_index[:number],
            block_hashes=self.block_hashes[:end], block_offsets=self.block_offsets[: number + 1],
        )  # fmt: skip

    def until(self, seconds: float) -> Traffic:
        """The requests that arrive before that moment."""
        return self.first(int(np.searchsorted(self.arrival_s, seconds, side="left")))

    def faster(self, factor: float) -> Traffic:
        """The same requests, `factor` times as many a second.

        Raises:
            SpecError: the factor is not above 0.
        """
        if not 0 < factor < float("inf"):
            raise SpecError(f"factor={factor} is not a factor of the rate; expected one above 0")
        return replace(self, arrival_s=self.arrival_s / factor)

    def at_load(self, factor: float) -> Traffic:
        """The same requests, `factor` times as many a second; in a closed loop as many times the
        users, at least one.

        Raises:
            SpecError: the factor is not above 0.
        """
        faster = self.faster(factor)
        if self.num_users is None:
            return faster
        return replace(faster, num_users=max(1, round(self.num_users * factor)))


def concatenate(parts: Sequence[Traffic], source: str) -> Traffic:
    """Several kinds of requests at the same time, each with its own classes and blocks.

    Raises:
        SpecError: there is none, they differ in the tokens of a block, or one is a closed loop.
    """
    if not parts:
        raise SpecError(f"{source}: no requests; expected one kind or more")
    if len(parts) == 1:
        return parts[0]
    if any(part.num_users is not None for part in parts):
        raise SpecError(f"{source}: a closed loop is alone; expected kinds with arrivals")
    sizes = {part.block_tokens for part in parts if len(part.block_hashes)}
    if len(sizes) > 1:
        raise SpecError(f"{source}: blocks of {sorted(sizes)} tokens; expected one size")
    names: list[str] = []
    blocks: list[list[int]] = []
    base = 0
    for part in parts:
        names += [part.class_of(index) for index in range(len(part))]
        blocks += [(part.blocks_of(index) + base).tolist() for index in range(len(part))]
        base += int(part.block_hashes.max(initial=-1)) + 1
    return Traffic.of(
        source,
        np.concatenate([part.arrival_s for part in parts]),
        np.concatenate([part.prompt_tokens for part in parts]),
        np.concatenate([part.output_tokens for part in parts]),
        class_names=names,
        blocks=blocks,
        block_tokens=sizes.pop() if sizes else parts[0].block_tokens,
        num_left_out=sum(part.num_left_out for part in parts),
    )


def _check(
    source: str, arrivals: npt.NDArray[np.float64], prompts: Columns, outputs: Columns
) -> None:
    if not np.isfinite(arrivals).all() or (arrivals < 0).any():
        raise SpecError(f"{source}: a request arrives at no time; expected seconds of 0 or more")
    for name, tokens in (("prompt", prompts), ("output", outputs)):
        if (tokens < 1).any():
            place = int(np.argmax(tokens < 1))
            raise SpecError(
                f"{source}: request {place + 1} has {tokens[place]} {name} tokens; "
                "expected 1 or more"
            )
