"""docs/results/estimates.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.accuracy.estimate.compare import Row, compare
from benchmarks.provenance import made_by

GIB = 2**30
HEAD = """# How accurate `ullage estimate` is for training

Each row compares a training loop on the phantom, which runs the real PyTorch and transformers, with
the estimate for the same configuration, which runs neither.

{made_by}

*exact*: parameters, gradients and optimizer states, counted by the program itself, agree to the
byte (?: the program does not count them). *activations* and *peak* are GiB on the phantom, beside
the estimate's error. The peak is that of allocated memory, which includes the rounding of blocks.
*covered*: the phantom's allocated bytes are within the estimate's interval, and its upper bound is
at least the reserved bytes.
"""


def write_page(vectors: Mapping[str, Mapping[str, Any]]) -> str:
    """The page."""
    rows = [compare(name, vector) for name, vector in vectors.items()]
    versions = ", ".join(sorted({vector["phantom"]["torch"] for vector in vectors.values()}))
    head = HEAD.format(made_by=made_by("benchmarks.accuracy.estimate", torch=versions))
    return "\n".join([head, *_summary(rows), "", *_table(rows, vectors)]) + "\n"


def _summary(rows: Sequence[Row]) -> Iterator[str]:
    counted = [row.is_exact for row in rows if row.is_exact is not None]
    yield f"- Cases: {len(rows)}."
    yield f"- Exact in {sum(counted)} of the {len(counted)} that are counted."
    for name, errors in (
        ("Activations", [abs(row.activation_error) for row in rows]),
        ("Peak", [abs(row.peak_error) for row in rows]),
    ):
        yield f"- {name}: median error {median(errors):.2%}, worst {max(errors):.2%}."
    yield f"- Covered: {sum(row.is_covered for row in rows)} of {len(rows)}."


def _table(rows: Sequence[Row], vectors: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "| case | GPU | loop | exact | activations | error | peak | error | covered |"
    yield "|---|---|---|---|---:|---:|---:|---:|---|"
    for row in rows:
        vector = vectors[row.name]
        loop = ", ".join(_words(vector["recipe"]))
        exact = "?" if row.is_exact is None else _mark(is_true=row.is_exact)
        yield (
            f"| {row.name} | {vector['gpu']} | {loop} | {exact} "
            f"| {row.activation[0] / GIB:.2f} | {row.activation_error:+.2%} "
            f"| {row.peak[0] / GIB:.2f} | {row.peak_error:+.2%} | {_mark(is_true=row.is_covered)} |"
        )


def _words(recipe: Mapping[str, Any]) -> Iterator[str]:
    for name, value in recipe.items():
        yield f"{name} {value}" if not isinstance(value, Mapping) else name


def _mark(*, is_true: bool) -> str:
    return "yes" if is_true else "no"
