"""The page of benchmarks/plans/partitioner.py: docs/results/activation-budget.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.provenance import made_by
from ullage.units import format_bytes

GPU = "h100-80gb"
# The batch, where the blocks are, what the model is, and what the products of a block are.
MODELS = {
    "gpt2": (
        8,
        "transformer.h.",
        "GPT-2 small, 8 texts of 1,024 tokens",
        "queries, keys and values (0), attention (1), its projection (2), the MLP (3, 4)",
    ),
    "llama": (
        4,
        "model.layers.",
        "a Llama of 272 million parameters, 4 texts of 2,048 tokens",
        "queries, keys and values (0, 1, 2), attention (3), its projection (4), the MLP (5, 6, 7)",
    ),
    "vit": (
        64,
        "blocks.",
        "ViT-L/16, 64 images of 224 x 224",
        "queries, keys and values (0), attention (1), its projection (2), the MLP (3, 4)",
    ),
}
GOAL = 0.1
_TERA = 1e12
_ABOUT = f"""# Recomputation under torch's activation_memory_budget

`torch._functorch.config.activation_memory_budget` has the compiler compute some activations
again in backward. It is a share of what would be kept, not a peak. Here it is compared with plans
that take no more memory than it was seen to, on the same model with each of its blocks compiled.
A plan checkpoints blocks, each with a set of its products kept (`selective_checkpoint`, `saves`)
or none (`checkpoint`), or leaves them as they are, and does nothing else. The solver of
`ullage fit` picks it, with floating-point operations in the place of seconds, as torch minimises
those, from all sets of products that no other beats by operations and bytes; these are found
from runs with all products kept but one.

Peaks are what torch allocates in the third step on the phantom of an {GPU}: bf16 autocast, fused
AdamW, the loss outside of the compiled model. Graphs are cut by the partitioner that Inductor
has, with its decompositions, and each operation runs by itself: Inductor would fuse many of them,
so that peaks under it are others. Operations are those of the graphs that ran, as often as they
ran (counted.py beside the programs); *again* is what they compute more than as it is, as a share
of a whole step. *Time* is that of the graphs by the model of costs, with what is bound by memory,
compared with the graphs as they are; as nothing is fused it is too long, for both. *Least* is
what no choice for the blocks computes less than again, by the model of memory and its solver.
"""
_READING = """
Two things make the difference. torch picks for each graph by sizes that it estimates, and gives
up attention early; of long texts that costs 4 operations x tokens for each element that is not
kept, a linear layer 2 x the width of its input. And a plan may treat each block in its own way,
where one budget treats all alike.

Where torch's set of products is one of the best, nothing can be gained by another. With the
ViT's 197 tokens attention is cheapest by what it keeps, and its other products cost as much by
the byte as each other: a plan keeps what torch does, and is better only by what finds room in
some blocks. Near budget 0 a block that keeps its input alone computes all of it again, under torch
as under a plan. *Time* counts what is bound by memory too, which torch's default estimate takes
for free; plans are not always faster by it, as they were not chosen for it here.
"""
_WHOLE = """
With the whole model as one graph torch did better, where that was measured, than with one graph
a block, and better than plans. The sums that run through the blocks are in float32 under
autocast. Each block that is checkpointed or compiled by itself keeps the sum that it is given; in
one graph torch keeps what the block before it added, in bfloat16, and adds up again. A plan does
not know that way.
"""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a step took: its peak, and what its compiled graphs computed.

    Attributes:
        seconds: by the model of costs, each operation by itself.
    """

    peak_bytes: int
    flops: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Pair:
    """torch at one budget, and the plan that takes no more memory; None where none was found.

    Attributes:
        how: what torch compiles, "blocks" one by one or the "whole" model. For plans it is blocks.
        least_flops: no plan of these sets of products computes less again, by the model.
    """

    how: str
    budget: float
    torch: Taken
    plan: str | None
    ours: Taken | None
    least_flops: float | None


@dataclass(frozen=True, slots=True)
class Result:
    """One model.

    Attributes:
        step_flops: of a step as it is, with all that is not compiled.
        as_it_is: compiled, by how.
        alike: each treatment on all blocks, with blocks compiled.
    """

    name: str
    step_flops: int
    as_it_is: Mapping[str, Taken]
    alike: Mapping[str, Taken]
    pairs: Sequence[Pair]

    def share(self, taken: Taken, how: str = "blocks") -> float:
        """What is computed again, of the operations of the step as it is."""
        return (taken.flops - self.as_it_is[how].flops) / self.step_flops


def gain(pair: Pair, result: Result) -> float | None:
    """How much less is computed again than torch does, as a share of that; None: torch computes
    nothing again, or no plan takes as little memory.
    """
    again = result.share(pair.torch, pair.how)
    if again <= 0 or pair.ours is None:
        return None
    return 1 - result.share(pair.ours) / again


def render(results: Sequence[Result], torch: str | None) -> str:
    """The page."""
    lines = [
        _ABOUT,
        made_by("benchmarks.plans.partitioner", torch=torch),
        "",
        "## What comes out",
        "",
        "Of the budgets at which torch computes anything again:",
        "",
        *_summary(results),
        _READING + _WHOLE * any("whole" in one.as_it_is for one in results),
    ]
    for result in results:
        lines += _section(result)
    lines += [
        "## What does not hold",
        "",
        f"That a plan computes {100 * GOAL:.0f} % less again at every budget, and never more:",
        "",
        *(text for result in results for text in _failures(result)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _summary(results: Sequence[Result]) -> Iterator[str]:
    yield "| model | compiled | budgets | less again, at least | at most | 10 % less | more again |"
    yield "|---|---|--:|--:|--:|--:|--:|"
    for result in results:
        for how in result.as_it_is:
            pairs = [one for one in result.pairs if one.how == how]
            gains = [one for one in (gain(pair, result) for pair in pairs) if one is not None]
            told = f"{100 * min(gains):.1f} % | {100 * max(gains):.1f} %" if gains else "- | -"
            well, worse = sum(one >= GOAL for one in gains), sum(one < 0 for one in gains)
            yield f"| {result.name} | {how} | {len(gains)} | {told} | {well} | {worse} |"


def _failures(result: Result) -> Iterator[str]:
    for pair in result.pairs:
        if pair.ours is None:
            yield f"- {result.name}, {pair.how}, {pair.budget:g}: no plan takes as little memory"
            continue
        more = result.share(pair.ours) - result.share(pair.torch, pair.how)
        less = gain(pair, result)
        if more > 0:
            told = f"{100 * more:.2f} % of a step more"
            yield f"- {result.name}, {pair.how}, {pair.budget:g}: {told}"
        elif less is not None and less < GOAL:
            yield f"- {result.name}, {pair.how}, {pair.budget:g}: {100 * less:.1f} % less"


def _section(result: Result) -> Iterator[str]:
    yield f"## {result.name}: {MODELS[result.name][2]}"
    yield ""
    yield f"A step as it is computes {result.step_flops / _TERA:.2f} x 10^12 operations. Products"
    yield f"of a block: {MODELS[result.name][3]}."
    for how, as_it_is in result.as_it_is.items():
        yield ""
        yield f"### {'Each block' if how == 'blocks' else 'The whole model'} compiled"
        yield ""
        yield f"As it is: {format_bytes(as_it_is.peak_bytes, 2)}."
        if how == "whole":
            yield "torch has one graph of the whole model, the plans have blocks compiled as above:"
            yield "*time* is compared with either as it is."
        yield ""
        yield (
            "| budget | torch: peak | again | time | plan: peak | again | time | less | least | "
            "blocks of the plan, and what they keep |"
        )
        yield "|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|"
        for pair in result.pairs:
            if pair.how == how:
                yield _row(pair, result)
    yield ""
    yield "### All blocks treated alike, each compiled"
    yield ""
    yield "| every block | peak | again | time |"
    yield "|---|--:|--:|--:|"
    for name, taken in result.alike.items():
        yield f"| {name} | {_cells(taken, result)} |"
    yield ""


def _row(pair: Pair, result: Result) -> str:
    cells = f"| {pair.budget:g} | {_cells(pair.torch, result, pair.how)} | "
    if pair.ours is None:
        return cells + "none found | | | | | |"
    less = gain(pair, result)
    told = "-" if less is None else f"{100 * less:.1f} %"
    least = "-"
    if pair.least_flops is not None:
        least = f"{100 * pair.least_flops / result.step_flops:.1f} %"
    return cells + f"{_cells(pair.ours, result)} | {told} | {least} | {pair.plan} |"


def _cells(taken: Taken, result: Result, how: str = "blocks") -> str:
    slower = taken.seconds / result.as_it_is[how].seconds - 1
    again = 100 * result.share(taken, how)
    return f"{format_bytes(taken.peak_bytes, 2)} | {again:.1f} % | {100 * slower:+.1f} %"
