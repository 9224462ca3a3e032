"""The page of benchmarks/plans/partitioner.py: docs/activation-budget.md."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ullage.units import format_bytes

GPU = "h100-80gb"
# The batch, where the blocks are, and of which class.
MODELS = {
    "gpt2": (8, "transformer.h.", "GPT-2 small, 8 texts of 1,024 tokens"),
    "llama": (4, "model.layers.", "a Llama of 272 million parameters, 4 texts of 2,048 tokens"),
    "vit": (64, "blocks.", "ViT-L/16, 64 images of 224 x 224"),
}
GOAL = 0.1
_TERA = 1e12


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
    """torch at one budget, and the plan that takes no more memory; None where none was found."""

    how: str
    budget: float
    torch: Taken
    plan: str | None
    ours: Taken | None


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

    def share(self, taken: Taken, how: str) -> float:
        """What is computed again, of the operations of the step as it is."""
        return (taken.flops - self.as_it_is[how].flops) / self.step_flops


def gain(pair: Pair, result: Result) -> float | None:
    """How much less is computed again than torch does, as a share of that; None: torch computes
    nothing again, or no plan takes as little memory.
    """
    again = result.share(pair.torch, pair.how)
    if again <= 0 or pair.ours is None:
        return None
    return 1 - result.share(pair.ours, pair.how) / again


def render(results: Sequence[Result]) -> str:
    """The page."""
    today = datetime.datetime.now(tz=datetime.UTC)
    lines = [
        "# Recomputation under torch's activation_memory_budget",
        "",
        "`torch._functorch.config.activation_memory_budget` has the compiler compute some",
        "activations again in backward. It is a share of what would be kept, not a peak. Here it",
        "is held against plans on the same compiled model, whole or block by block, which take no",
        "more memory than it was seen to. A plan checkpoints blocks, with `checkpoint` or",
        "`selective_checkpoint`, and does nothing else; the solver of `ullage fit` picks it, with",
        "floating-point operations in the place of seconds, as torch minimises those.",
        "",
        f"Peaks are what torch allocates in the third step on the phantom of an {GPU}: bf16",
        "autocast, fused AdamW, the loss outside of the compiled model. Graphs are cut by the",
        "partitioner that Inductor has, with its decompositions, and each operation runs by",
        "itself: Inductor would fuse many of them, so that peaks under it are others. Operations",
        "are those of the graphs that ran, as often as they ran (counted.py beside the programs);",
        "*again* is what they compute more than as it is, as a share of a whole step. *Time* is",
        "that of the graphs by the model of costs, with what is bound by memory, compared with",
        "the graphs as they are; as nothing is fused it is too long, for both.",
        "",
        f"Made by `python -m benchmarks.plans.partitioner`, {today:%Y-%m-%d}.",
        "",
        "## What comes out",
        "",
        "Of the budgets at which torch computes anything again:",
        "",
        *_summary(results),
        "",
        "Two things make the difference. torch picks for each graph by sizes that it estimates,",
        "and gives up attention early; of long texts that costs 4 operations x tokens for each",
        "element that is not kept, a linear layer 2 x the width of its input. And a plan may treat",
        "each block in its own way, where one budget treats all alike. Near budget 0 there is",
        "little to gain: a block that keeps its input alone computes all of it again, under torch",
        "as under a plan. Where torch computes no product again, a plan that may take no byte more",
        "has to, if it is above torch by a rounding of the allocator. *Time* counts what is bound",
        "by memory too, which torch's default estimate takes for free; plans are not always",
        "faster by it, as they were not chosen for it here.",
        "",
    ]
    for result in results:
        lines += _section(result)
    lines += [
        "## What does not hold",
        "",
        f"That a plan computes {100 * GOAL:.0f} % less again at every budget, and never more:",
        "",
        *(text for result in results for text in _failures(result)),
        "",
        "For the ViT torch keeps some products of a block and gives up others, which the choices",
        "of `selective_checkpoint` (all products, attention, both) cannot express.",
        "",
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
        more = result.share(pair.ours, pair.how) - result.share(pair.torch, pair.how)
        less = gain(pair, result)
        if more > 0:
            told = f"{100 * more:.2f} % of a step more"
            yield f"- {result.name}, {pair.how}, {pair.budget:g}: {told}"
        elif less is not None and less < GOAL:
            yield f"- {result.name}, {pair.how}, {pair.budget:g}: {100 * less:.1f} % less"


def _section(result: Result) -> Iterator[str]:
    yield f"## {result.name}: {MODELS[result.name][2]}"
    yield ""
    yield f"A step as it is computes {result.step_flops / _TERA:.2f} x 10^12 operations."
    for how, as_it_is in result.as_it_is.items():
        yield ""
        yield f"### {'Each block' if how == 'blocks' else 'The whole model'} compiled"
        yield ""
        yield f"As it is: {format_bytes(as_it_is.peak_bytes, 2)}."
        yield ""
        yield "| budget | torch: peak | again | time | plan: peak | again | time | less | plan |"
        yield "|--:|--:|--:|--:|--:|--:|--:|--:|---|"
        for pair in result.pairs:
            if pair.how == how:
                yield _row(pair, result)
    yield ""
    yield "### All blocks treated alike, each compiled"
    yield ""
    yield "| every block | peak | again | time |"
    yield "|---|--:|--:|--:|"
    for name, taken in result.alike.items():
        yield f"| {name} | {_cells(taken, result, 'blocks')} |"
    yield ""


def _row(pair: Pair, result: Result) -> str:
    cells = f"| {pair.budget:g} | {_cells(pair.torch, result, pair.how)} | "
    if pair.ours is None:
        return cells + "none found | | | | |"
    less = gain(pair, result)
    told = "-" if less is None else f"{100 * less:.1f} %"
    return cells + f"{_cells(pair.ours, result, pair.how)} | {told} | {pair.plan} |"


def _cells(taken: Taken, result: Result, how: str) -> str:
    slower = taken.seconds / result.as_it_is[how].seconds - 1
    again = 100 * result.share(taken, how)
    return f"{format_bytes(taken.peak_bytes, 2)} | {again:.1f} % | {100 * slower:+.1f} %"
