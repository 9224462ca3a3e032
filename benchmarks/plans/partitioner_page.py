"""The page of benchmarks/plans/partitioner.py: docs/results/plans.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.provenance import made_by
from ullage.ground.units import format_bytes

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

`torch._functorch.config.activation_memory_budget` makes the compiler recompute some activations in
backward. Its value is a fraction of the saved activations, not a peak. This page compares it with
plans that need no more memory, on the same model with each of its blocks compiled. The solver of
`ullage fit` chooses the plan, which uses selective checkpointing alone, by operations.

The peaks are those of torch's allocated memory in the third step on the phantom of an {GPU}, with
bf16 autocast, fused AdamW, and the loss outside of the compiled model. Nothing is fused. *again*
is the recomputed operations, as a fraction of the whole unchanged step. *time* is the time of the
graphs, of each operation the longer of its bytes by the clock and its operations at the stated
rate, compared with the unchanged graphs. *least* is a lower bound on the recomputed operations of
any choice for the blocks, by the memory model and its solver.
"""
_READING = """
There are two reasons for the difference. First, torch chooses for each graph by estimated sizes,
and recomputes attention early. Second, a plan may treat each block differently, but one budget
treats all alike.


"""
_WHOLE = """
With the whole model as one graph, torch did better than with one graph per block and better than
plans, where that was measured.
"""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a step took: its peak, and what its compiled graphs computed.

    Attributes:
        seconds: each operation by itself, its bytes by the clock.
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
        "For the budgets at which torch recomputes anything:",
        "",
        *_summary(results),
        _READING + _WHOLE * any("whole" in one.as_it_is for one in results),
    ]
    for result in results:
        lines += _section(result)
    lines += [
        "## What does not hold",
        "",
        f"A plan should recompute {100 * GOAL:.0f} % less at every budget, and never more:",
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
    for how, as_it_is in result.as_it_is.items():
        yield ""
        yield f"### {'Each block' if how == 'blocks' else 'The whole model'} compiled"
        yield ""
        yield f"As it is: {format_bytes(as_it_is.peak_bytes, 2)}."
        yield f"A step as it is computes {result.step_flops / _TERA:.2f} x 10^12 operations."
        yield f"Products of a block: {MODELS[result.name][3]}."
        if how == "whole":
            yield "torch compiles the whole model as one graph, plans compile each block as above:"
            yield "*time* compares each with its own unchanged graphs."
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
