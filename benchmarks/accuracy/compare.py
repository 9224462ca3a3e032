"""Hold two recordings together: python compare.py TRUTH_DIR OTHER_DIR

Per workload: equal events in order, first difference, and the error of the highest peaks of all
steps; then a summary line, and what ran out of memory in the first recording alone. Order within a
run of consecutive frees does not count: autocast drops its cache in the order of a hash map of
pointers, which differs from process to process on a real GPU too. Exit status 1 where events differ
or something ran out in the first alone.
"""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

PEAKS = ("requested", "allocated", "active", "reserved")


class Comparison(NamedTuple):
    """One workload in two recordings."""

    num_events: tuple[int, int]
    first_difference: int | None  # place of the first event that differs; None: all are equal
    errors: dict[str, float]  # of each peak, as a fraction of the first recording's


def highest(row: dict[str, Any]) -> dict[str, int]:
    """Each of the four peaks of a recorded workload, over all its steps."""
    return {peak: max(step[peak] for step in row["steps"]) for peak in PEAKS}


def canonical(events: NDArray[np.int64]) -> NDArray[np.int64]:
    """The events with each run of consecutive frees (requested, completed) in a fixed order."""
    is_free = np.isin(events[:, 0], (1, 2))
    run = np.cumsum(np.diff(is_free, prepend=~is_free[:1]) | ~is_free)
    order = np.lexsort((events[:, 0], np.where(is_free, events[:, 1], 0), run))
    return events[order]


def first_difference(a: NDArray[np.int64], b: NDArray[np.int64]) -> int | None:
    """The place of the first event that differs, None if there is none."""
    a, b = canonical(a), canonical(b)
    num_common = min(len(a), len(b))
    is_equal = (a[:num_common] == b[:num_common]).all(axis=1)
    if not is_equal.all():
        return int(np.argmin(is_equal))
    return None if len(a) == len(b) else num_common


def read(folder: Path) -> tuple[dict[str, Any], dict[str, NDArray[np.int64]]]:
    """A recording's truth.json, and its events per workload."""
    truth = json.loads((folder / "truth.json").read_text())
    with np.load(folder / "events.npz") as events:
        return truth, dict(events)


def compare(truth_dir: Path, other_dir: Path) -> dict[str, Comparison | str]:
    """Every workload of the first recording: how the second compares, or why it cannot be."""
    truth, true_events = read(truth_dir)
    other, other_events = read(other_dir)
    found: dict[str, Comparison | str] = {}
    for name, row in truth.items():
        other_row = other.get(name, {"error": "absent"})
        if "error" in row or "error" in other_row:
            found[name] = f"{row.get('error')} | {other_row.get('error')}"
            continue
        a, b = true_events[name], other_events[name]
        x, y = highest(row), highest(other_row)
        errors = {peak: (y[peak] - x[peak]) / x[peak] for peak in PEAKS}
        found[name] = Comparison((len(a), len(b)), first_difference(a, b), errors)
    return found


def false_fits(truth_dir: Path, other_dir: Path) -> list[str]:
    """The workloads that ran out of memory in the first recording and not in the second."""
    truth, _ = read(truth_dir)
    other, _ = read(other_dir)
    ran_out = [name for name, row in truth.items() if "out of memory" in row.get("error", "")]
    return [name for name in ran_out if "error" not in other.get(name, {"error": "absent"})]


def main() -> None:
    """Print the comparison."""
    if len(sys.argv) != 3:
        raise SystemExit("usage: compare.py TRUTH_DIR OTHER_DIR")
    num_exact, worst = 0, []
    for name, row in compare(Path(sys.argv[1]), Path(sys.argv[2])).items():
        if isinstance(row, str):
            print(f"{name:28} not comparable: {row}")
            continue
        num_exact += row.first_difference is None
        worst.append(max(abs(row.errors["allocated"]), abs(row.errors["reserved"])))
        place = (
            "all equal   "
            if row.first_difference is None
            else f"differ at {row.first_difference:>6,}"
        )
        errors = "  ".join(f"{peak} {error:+.3%}" for peak, error in row.errors.items())
        print(f"{name:28} events {row.num_events[0]:>7,}/{row.num_events[1]:>7,} {place}  {errors}")
    if not worst:
        print("nothing to compare")
        return
    summary = f"worst peak error median {np.median(worst):.3%}, max {max(worst):.3%}"
    print(f"{num_exact} of {len(worst)} equal event for event; {summary}")
    wrong = false_fits(Path(sys.argv[1]), Path(sys.argv[2]))
    print(f"ran out of memory in the first alone: {', '.join(wrong) or 'none'}")
    raise SystemExit(int(bool(wrong) or num_exact < len(worst)))


if __name__ == "__main__":
    main()
