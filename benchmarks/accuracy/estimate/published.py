"""Compares `ullage estimate` with figures that others published of real GPUs (published.csv), and
writes docs/results/estimates.md.

    python -m benchmarks.accuracy.estimate.published [--only WORD]

Each row of the table is one estimate, its options as flags, and what was measured:

- ALLOC: torch.cuda.max_memory_allocated(); RES: max_memory_reserved(); DEV: nvidia-smi;
- STATES: the optimizer's states; ACTS: what the forward pass keeps; RISE: how much a step adds;
- FIT: it ran ("FIT") or ran out of memory ("OOM").
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.option_words import read_words
from benchmarks.provenance import made_by
from benchmarks.results import publish
from ullage.players.eager.term import Interval, OwnedTerm
from ullage.players.eager.training.estimate import OUTSIDE, TrainingEstimate
from ullage.verbs.estimate.function import estimate_training
from ullage.verbs.estimate.options import TrainingOptions

FOLDER: Final = Path(__file__).parent
ROOT: Final = FOLDER.parents[2]
TABLE: Final = FOLDER / "published.csv"
GIB: Final = 2**30
STATED: Final = "stated"
_ROUNDING_FRAC: Final = 0.0005  # figures are published with four digits at most


@dataclass(frozen=True, slots=True)
class Row:
    """A published figure, and the estimate.

    Attributes:
        source, id: who published it, and its name there.
        quantity: what was measured.
        arguments: the options.
        measured: bytes; None of a fit.
        did_fit: of a fit whether it ran; None of bytes.
        low, likely, high: the estimate of the quantity; None where it cannot be expressed.
        fits: the verdict on the row's GPU.
        recipe: "stated", or why it is not.
        remark: what is special about it.
    """

    source: str
    id: str
    quantity: str
    arguments: str
    measured: int | None
    did_fit: bool | None
    low: int
    likely: int
    high: int
    fits: bool | None
    recipe: str
    remark: str

    @property
    def error(self) -> float | None:
        """Of the likely value; None of a fit."""
        return None if self.measured is None else self.likely / self.measured - 1

    @property
    def is_inside(self) -> bool:
        """The interval holds the figure, or the verdict does not contradict it."""
        if self.measured is not None:
            rounding = _ROUNDING_FRAC * self.measured
            return self.low - rounding <= self.measured <= self.high + rounding
        return self.fits in (None, self.did_fit)

    @property
    def is_scored(self) -> bool:
        """Its recipe is stated."""
        return self.recipe == STATED


def read_rows(only: str = "") -> Iterator[Row]:
    """The rows whose source or id has a word in it, estimated one after the other."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        for fields in csv.DictReader(file):
            if only in f"{fields['source']} {fields['id']}":
                yield _row(fields)


def estimate_of(arguments: str) -> TrainingEstimate:
    """The estimate of some options.

    Raises:
        SpecError: the command is wrong.
    """
    return estimate_training.act(read_words(TrainingOptions, arguments)).answer.estimate


def _row(fields: dict[str, str]) -> Row:
    estimate = estimate_of(fields["arguments"])
    quantity, measured = fields["quantity"], fields["measured"]
    low, likely, high = _bytes_of(estimate, quantity)
    is_fit = quantity == "FIT"
    return Row(
        source=fields["source"],
        id=fields["id"].strip(),
        quantity=quantity,
        arguments=fields["arguments"],
        measured=None if is_fit else int(measured),
        did_fit=measured == "FIT" if is_fit else None,
        low=low,
        likely=likely,
        high=high,
        fits=estimate.fits,
        recipe=fields["recipe"],
        remark=fields["remark"],
    )


def _bytes_of(estimate: TrainingEstimate, quantity: str) -> Interval:
    """What the estimate says of a quantity."""
    if quantity == "ALLOC":
        return estimate.allocated
    terms = list(_terms(estimate, quantity))
    ends = zip(*((each.low_bytes, each.bytes, each.high_bytes) for each in terms), strict=True)
    return Interval(*map(sum, ends))


def _terms(estimate: TrainingEstimate, quantity: str) -> Iterator[OwnedTerm]:
    """The terms that a quantity is made of."""
    without = {
        "RES": OUTSIDE,
        "RISE": ("parameters", "buffers", "optimizer states", "cached blocks", *OUTSIDE),
    }
    only = {"STATES": ("optimizer states",), "ACTS": ("activations",)}
    for term in estimate.terms:
        is_in = term.name in only[quantity] if quantity in only else True
        if is_in and term.name not in without.get(quantity, ()):
            yield term


@dataclass(frozen=True, slots=True)
class Score:
    """Of rows together.

    Attributes:
        num_rows: rows whose recipe is stated.
        median_error, worst_error: of the bytes, without sign.
        inside_frac: rows whose figure is inside.
        num_false_fits: rows that did not fit, where the verdict is "fits".
    """

    num_rows: int
    median_error: float
    worst_error: float
    inside_frac: float
    num_false_fits: int


def score(rows: Iterable[Row]) -> Score:
    """The score of rows; those whose recipe is not stated are left out."""
    scored = [row for row in rows if row.is_scored]
    errors = [abs(row.error) for row in scored if row.error is not None]
    return Score(
        len(scored),
        median(errors),
        max(errors),
        sum(row.is_inside for row in scored) / len(scored),
        sum(row.did_fit is False and row.fits is True for row in scored),
    )


HEAD: Final = """# How accurate `ullage estimate` is against figures that others published

Each row is a figure of a real GPU that somebody published, and what one command of `ullage
estimate` says. None of these GPUs was at hand.

{made_by}

ALLOC and RES: `torch.cuda.max_memory_allocated()` and `max_memory_reserved()`; DEV: nvidia-smi;
STATES: the optimizer's states; ACTS: what the forward pass keeps; RISE: what a step adds to
weights and states; FIT: it ran. Sizes in GiB. Inside: the interval of the estimate holds the
figure, or the verdict does not contradict it. A row whose recipe is not stated in full is not
counted in the score.  These rows were seen while the recipes were
written: that bitsandbytes before torch 2.6 keeps its inputs, that PEFT's adapters are in bf16, when
`zero_grad()` runs and how gradients accumulate were chosen with their errors in sight, so the score
is not blind. Rows of other sources would be.
"""

_OFF: Final = 0.10
COLUMNS: Final = (
    "source", "row", "quantity", "published", "estimate", "error", "interval", "inside", "recipe",
    "remark", "command",
)  # fmt: skip
# Where a source is, as far as its name does not say it.
_SOURCES: Final = {
    "HF perf docs": "transformers, the documentation's page on training on one GPU, BERT-large",
    "rasbt ViT": "rasbt/pytorch-memory-optim",
    "litgpt L1": "Lightning-AI/litgpt, config_hub/finetune/README.md",
    "litgpt L2": "Lightning-AI/litgpt, tutorials",
    "PEFT": "huggingface/peft, method_comparison/MetaMathQA",
    "Megatron": "Megatron-LM, figures of its functional tests",
    "Korthikanti": "Korthikanti et al. 2022, arXiv:2205.05198",
    "CS336": "reports of the course CS336, assignment 2",
    "GMN, TMA": "tables of nvidia-smi readings of two studies of memory on A100s",
}


def write_page(rows: list[Row]) -> str:
    """The page."""
    total = score(rows)
    far = [row for row in rows if row.is_scored and row.error and abs(row.error) > _OFF]
    lines = [
        HEAD.format(made_by=made_by("benchmarks.accuracy.estimate.published")),
        f"- Rows: {len(rows)}, of which {total.num_rows} have a recipe that is stated in full.",
        f"- Error: median {total.median_error:.1%}, worst {total.worst_error:.1%}.",
        f"- Errors above 10 %: {', '.join(row.id for row in far) or 'none'}.",
        f"- Inside: {total.inside_frac:.0%}.",
        f'- Verdicts of "fits" where it did not: {total.num_false_fits}.',
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---|---|---|---:|---:|---:|---|---|---|---|---|",
        *(_line(row) for row in rows),
        "",
        "## Sources",
        "",
        *(f"- {name}: {where}." for name, where in _SOURCES.items()),
    ]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    between = f"{row.low / GIB:.2f} to {row.high / GIB:.2f}"
    inside = "yes" if row.is_inside else "no"
    if row.measured is None:
        verdict = {True: "fits", False: "does not fit", None: "may fit"}[row.fits]
        found, said, error = "ran" if row.did_fit else "out of memory", verdict, ""
    else:
        found, said = f"{row.measured / GIB:.2f}", f"{row.likely / GIB:.2f}"
        error = "" if row.error is None else f"{row.error:+.1%}"
    return (
        f"| {row.source} | {row.id} | {row.quantity} | {found} | {said} | {error} | {between} "
        f"| {inside} | {row.recipe} | {row.remark} | `ullage estimate {row.arguments}` |"
    )


def main() -> None:
    """Estimates the rows, and writes the page if they are all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose source or id holds this word")
    options = parser.parse_args()
    rows = list(read_rows(options.only))
    for row in rows:
        print(_line(row))
    print(score(rows))
    if not options.only:
        publish("estimate-published", write_page(rows))


if __name__ == "__main__":
    main()
