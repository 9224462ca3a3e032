"""docs/results/plans.md, from what benchmarks/plans/gpu.py has measured on a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.results import publish
from ullage.ground.units import format_bytes

# The first steps allocate, pin memory and choose kernels.
WARM_UP = 5
GOAL = 0.9
_HEAD = (
    "| plan | step foreseen | step | device foreseen | device | allocated foreseen | allocated |"
)


def median_ms(run: Mapping[str, Any]) -> float | None:
    """The median time of a step after the first; None where it did not come so far."""
    steps = run.get("steps_ms", [])[WARM_UP:]
    return statistics.median(steps) if steps else None


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """The rank correlation of two rows of at least two different numbers each; equal ones share
    their mean rank.
    """
    return statistics.correlation(_ranks(left), _ranks(right))


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(one) + (ordered.count(one) - 1) / 2 for one in values]


def write_page(found: Mapping[str, Any]) -> None:
    """Writes the page; ValueError where nothing was measured on a GPU."""
    if found["is_phantom"]:
        raise ValueError("this was measured on the phantom, where times mean nothing")
    publish("plans-gpu", "\n".join(page_lines(found)) + "\n")


def page_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The page."""
    ran = [one for one in found["runs"] if median_ms(one) is not None]
    first = ran[0]
    foreseen = [one for one in ran if one["foreseen"]]
    again = next((one for one in ran if one["name"] == "as it is, again"), None)
    about = (
        f"`{' '.join(found['program'])}` on a {first['device']} with torch {first['torch']}, "
        f"{found['date']}: as it is, under plans of `ullage fit` as `ullage exec` applies them, "
        "and with what else there is to save memory. A step is the median of those after the first "
        f"{WARM_UP}. What is foreseen was found on the phantom with torch {found['plans']}, times "
        "with the rates that makers state. Made by `python -m benchmarks.plans.gpu`."
    )
    yield from (
        "# Plans on a real GPU",
        "",
        about,
        "",
        _HEAD,
        "|---|---:|---:|---:|---:|---:|---:|",
    )
    for one in sorted(foreseen, key=lambda one: median_ms(one) or 0.0):
        yield _row(one)
    yield from _figures(foreseen)
    if again is not None:
        yield f"- The program as it is, run once more at the end: {median_ms(again):.1f} ms a step."
    yield from ("", "## Instead of a plan", "", "| | step | device |", "|---|---:|---:|")
    for one in ran:
        if not one["is_plan"]:
            yield f"| {one['name']} | {_ms(median_ms(one))} | {_size(one, 'peak_used_bytes')} |"
    failed = [one for one in found["runs"] if median_ms(one) is None]
    yield ""
    for one in failed:
        yield f"Not measured: {one['name']}: {one.get('failed', 'too few steps')}."
    yield from (f"Left out for want of time: {name}." for name in found["left_out"])


def _figures(foreseen: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """How far what is foreseen agrees with what was measured."""
    order = spearman(
        [one["foreseen"]["step_s"] for one in foreseen],
        [median_ms(one) or 0.0 for one in foreseen],
    )
    errors = [
        abs(one["foreseen"]["peak_allocated_bytes"] / one["peak_allocated_bytes"] - 1)
        for one in foreseen
    ]
    yield ""
    yield (
        f"- Rank correlation (Spearman) of the steps foreseen and measured, {len(foreseen)} plans: "
        f"{order:.3f} (goal: {GOAL})."
    )
    yield (
        f"- Peak of allocated bytes: off by {100 * statistics.median(errors):.2f} % in the median, "
        f"{100 * max(errors):.2f} % at most."
    )


def _row(one: Mapping[str, Any]) -> str:
    foreseen = one["foreseen"]
    cells = (
        f"**{one['name']}**" if foreseen["is_chosen"] else one["name"],
        _ms(1e3 * foreseen["step_s"]),
        _ms(median_ms(one)),
        format_bytes(foreseen["peak_used_bytes"], 2),
        _size(one, "peak_used_bytes"),
        format_bytes(foreseen["peak_allocated_bytes"], 2),
        _size(one, "peak_allocated_bytes"),
    )
    return f"| {' | '.join(cells)} |"


def _ms(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds:.1f} ms"


def _size(one: Mapping[str, Any], name: str) -> str:
    return format_bytes(one[name], 2)
