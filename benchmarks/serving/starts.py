"""Holds estimates of servers against starts of vLLM that people published, and writes the page.

    python -m benchmarks.serving.starts

Every row of starts.toml is one answer of `ullage capacity`, its options as flags. Writes
docs/results/serving.md; tests/cli/test_serving_starts.py holds the aggregate.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.option_words import read_words
from benchmarks.provenance import made_by
from benchmarks.results import publish
from ullage.ground.units import GIB
from ullage.verbs.capacity.function import capacity
from ullage.verbs.capacity.options import CapacityOptions

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
STARTS: Final = HERE / "starts.toml"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A published start, and what ullage says of it.

    Attributes:
        start: its row of starts.toml.
        printed_bytes: for the cache, as vLLM printed them or as its tokens say.
        kv_bytes: the estimate: low, likely, high.
        verdict: of the estimate.
        num_parameters: of the model.
    """

    start: dict[str, Any]
    printed_bytes: int
    kv_bytes: tuple[int, int, int]
    verdict: str
    num_parameters: int

    @property
    def error(self) -> float:
        """Of the likely value, as a share of what was printed."""
        return self.kv_bytes[1] / self.printed_bytes - 1

    @property
    def is_inside(self) -> bool:
        """What was printed is in the interval."""
        return self.kv_bytes[0] <= self.printed_bytes <= self.kv_bytes[2]

    @property
    def width_gib(self) -> float:
        """Of the interval."""
        return (self.kv_bytes[2] - self.kv_bytes[0]) / GIB

    def row(self) -> str:
        """A line of the table."""
        before = self.start.get("width_gib")
        low, likely, high = (f"{size / GIB:.2f}" for size in self.kv_bytes)
        cells = (
            self.start["name"], f"{self.printed_bytes / GIB:.2f}", likely, f"{self.error:+.1%}",
            f"{low} to {high}", "yes" if self.is_inside else "**no**", f"{self.width_gib:.2f}",
            f"{before:.2f}" if before else "-",
        )  # fmt: skip
        return f"| {' | '.join(cells)} |"


def load() -> dict[str, list[dict[str, Any]]]:
    """The tables of starts.toml."""
    return tomllib.loads(STARTS.read_text(encoding="utf-8"))


def ask(start: dict[str, Any]) -> Outcome:
    """The answer of the row's options."""
    document = capacity.act(read_words(CapacityOptions, start["command"])).document
    low, likely, high = document["kv_bytes"]
    each = sum(group["token_bytes"] for group in document["kv_groups"])
    printed = round(start["kv_gib"] * GIB) if "kv_gib" in start else start["tokens"] * each
    return Outcome(
        start,
        printed,
        (low, likely, high),
        document["verdict"],
        document["model"]["num_parameters"],
    )


def outcomes(*, is_other: bool = False) -> list[Outcome]:
    """Of all rows of one of the two kinds."""
    rows = [row for row in load()["start"] if row.get("is_other", False) is is_other]
    return [ask(row) for row in rows]


def summary(found: list[Outcome]) -> str:
    """The aggregate, in a sentence."""
    errors = [abs(one.error) for one in found]
    inside = sum(one.is_inside for one in found)
    return (
        f"{inside} of {len(found)} inside the interval; error of the likely value: median "
        f"{median(errors):.1%}, worst {max(errors):.1%}."
    )


HEAD: Final = """\
| Start | printed, GiB | ours | error | interval | inside | width | width before |
|---|---|---|---|---|---|---|---|
"""


def render() -> str:
    """The report, for which every row is asked."""
    held, others = outcomes(), outcomes(is_other=True)
    narrower = [one.width_gib / one.start["width_gib"] for one in held]
    sources = "\n".join(
        f"- {one.start['name']}: {one.start['source']}"
        + (f"; {one.start['note']}" if "note" in one.start else "")
        + f".\n  `ullage estimate {one.start['command']}`"
        for one in (*held, *others)
    )
    phantom = "\n".join(
        "| {name} | {weights_gib:.2f} | {peak_gib:.2f} | {kv_gib:.2f} |".format(**row)
        for row in load()["phantom"]
    )
    text = (HERE / "starts.md").read_text(encoding="utf-8")
    return text.format(
        made_by=made_by("benchmarks.serving.starts"),
        table=HEAD + "\n".join(one.row() for one in held),
        summary=summary(held),
        widths=f"{median(narrower):.0%}, at most {max(narrower):.0%}",
        others=HEAD + "\n".join(one.row() for one in others),
        other_summary=summary(others),
        phantom=phantom,
        sources=sources,
    )


def main() -> None:
    """Asks for every row, and writes the page."""
    publish("serving-starts", render())


if __name__ == "__main__":
    main()
