"""docs/results/time.md: every published step time, the prediction, and how they compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.provenance import made_by
from benchmarks.time.published.row import Figure, Prediction
from benchmarks.time.published.score import (
    Comparison,
    Pair,
    compare,
    families,
    pairs,
    rank_correlation,
    score,
)

HEAD = """# Step times: predictions compared with published runs

{made_by}

{summary}

Each program runs as one rank of its job on the phantom, and `ullage run --time` states the seconds
of a step after warm-up as an interval. How a program differs from the published one is said below;
those of parameter-golf were written off copies ([accuracy-logs.md](accuracy-logs.md)). A prediction
is printed and stored before the published figure is read.

Nothing was fitted to these figures, but they were known to one who wrote the clock. Four rows had
been predicted once before and compared: T1a 2,121 ms, T1b 1,731, A8B 2,412, NaiveBaseline 40.9. One
change was made for it: T1 and T3 ran on H100s with a limit of 500 W and 2.4 TB/s, for which the
catalogue's H100 had stood; it has a row for them now, with that bandwidth and the middle of the two
peak rates between which their owners place it. What changed otherwise since then (kernels on two
streams share the device; memory that only lies behind a kernel's arguments is not counted) was for
other reasons.

Times are milliseconds a step. Where several runs were published, the row has
their median. Tokens a second for each GPU were turned into times by the tokens of one GPU in a
step (local batch x sequence length). *Error* is that of the likely time: above 0 where the
prediction is too slow.
"""
MISSES = """## What misses, and why it may

- Every row is predicted too fast. The likely time is that of the kernels alone, at the clocks of
  NVIDIA's measurements. It leaves out a GPU at its power limit (the H100s of T1 and T3 had 500 W of
  700), ranks that are slower than this one and are waited for, what messages take from kernels
  beside them, and the host's own work. No operator benchmark is known to the authors that tells
  these, so none is in.
- A step on 128 GPUs is predicted as long as one on 8, and was 2 % longer (pairs of T1 with T3): the
  model hides the messages between machines behind computation, and knows no slowest of 128 ranks.
- Float8 (T1c, T3c) is nearest: the tables of products in float8 have NVIDIA's quantisation in
  them, which errs to the other side.
- `TrainingOptSeq4096` is 30 % too fast and just outside the interval, where the same model at a
  sequence of 1,024 is 4 % off. Its log has torch 2.8, the run here 2.9.1, and the program was
  written off a copy; the cause was not found.
- Intervals are wide (a third to each side), since every kernel's error is taken in one direction.
"""
COLUMNS = (
    "row", "GPU", "torch", "torch here", "published", "low", "likely", "high", "error", "inside",
)  # fmt: skip


def render(figures: Sequence[Figure], predictions: Mapping[str, Prediction]) -> str:
    """The page."""
    rows = compare(figures, predictions)
    parts = [HEAD.format(made_by=_made_by(predictions), summary=_summary(rows))]
    for family, members in families(rows).items():
        parts += [f"## {family}\n", _table(members, predictions), _of_family(members)]
    parts += [_pairs(list(pairs(rows))), _kinds(rows, predictions), MISSES]
    parts += [_settings(figures), _missing(figures, predictions)]
    return "\n".join(part for part in parts if part)


def _made_by(predictions: Mapping[str, Prediction]) -> str:
    versions = sorted({made.torch for made in predictions.values() if made.torch})
    return made_by("benchmarks.time.published --programs DIR", torch=", ".join(versions) or None)


def _summary(rows: Sequence[Comparison]) -> str:
    if not rows:
        return "**No row has been run.**"
    total, named = score(rows), list(pairs(rows))
    right = sum(pair.is_named_right for pair in named)
    return (
        f"**{total.count} rows: median error {total.median:.1%}, ninth decile "
        f"{total.ninth_decile:.1%}, the published time inside the interval in {total.inside:.0%}; "
        f"of {len(named)} pairs of settings the faster one is named in {right}.**"
    )


def _table(rows: Sequence[Comparison], predictions: Mapping[str, Prediction]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|---|---|---" + "|--:" * 5 + "|---|"]
    for row in rows:
        figure = row.figure
        cells = (
            f"`{figure.name}`", figure.gpu, figure.torch, predictions[figure.name].torch,
            _published(figure), _ms(row.low_s), _ms(row.likely_s), _ms(row.high_s),
            f"{row.error:+.1%}", "yes" if row.is_inside else "no",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _of_family(rows: Sequence[Comparison]) -> str:
    result, correlation = score(rows), rank_correlation(rows)
    ranks = "" if correlation is None else f", rank correlation {correlation:.2f}"
    return (
        f"Median error {result.median:.1%}, ninth decile {result.ninth_decile:.1%}, inside "
        f"{result.inside:.0%}{ranks}.\n"
    )


def _pairs(named: Sequence[Pair]) -> str:
    if not named:
        return ""
    lines = [
        "## Pairs of settings\n",
        "The second's time as a share of the first's.\n",
        "| first | second | published | likely | named right |",
        "|---|---|--:|--:|---|",
    ]
    for pair in named:
        published = pair.second.figure.seconds / pair.first.figure.seconds
        likely = pair.second.likely_s / pair.first.likely_s
        lines.append(
            f"| `{pair.first.figure.name}` | `{pair.second.figure.name}` | {published:.3f} | "
            f"{likely:.3f} | {'yes' if pair.is_named_right else 'no'} |"
        )
    return "\n".join(lines) + "\n"


def _kinds(rows: Sequence[Comparison], predictions: Mapping[str, Prediction]) -> str:
    names = list(dict.fromkeys(kind for row in rows for kind in _shares(row, predictions)))
    if not names:
        return ""
    lines = [
        "## What the predicted steps are made of\n",
        "Shares of the likely step; what runs beside computation belongs to the computation.\n",
        f"| row | {' | '.join(names)} |",
        "|---|" + "--:|" * len(names),
    ]
    for row in rows:
        shares = _shares(row, predictions)
        cells = (f"{shares.get(name, 0.0):.0%}" for name in names)
        lines.append(f"| `{row.figure.name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _shares(row: Comparison, predictions: Mapping[str, Prediction]) -> dict[str, float]:
    kinds = predictions[row.figure.name].kinds
    return {name: seconds / row.likely_s for name, seconds in kinds.items()}


def _settings(figures: Sequence[Figure]) -> str:
    lines = ["## Settings and sources\n"]
    for figure in figures:
        note = f" Not as published: {figure.note}." if figure.note else ""
        lines.append(f"- `{figure.name}`: {figure.setting}. Source: {figure.source}.{note}")
    return "\n".join(lines) + "\n"


def _missing(figures: Sequence[Figure], predictions: Mapping[str, Prediction]) -> str:
    lines = []
    for figure in figures:
        made = predictions.get(figure.name)
        if made is None:
            lines.append(f"- `{figure.name}`: not run.")
        elif made.likely_s is None:
            lines.append(f"- `{figure.name}`: {made.error}")
    return "\n".join(["## Rows without a prediction\n", *lines]) + "\n" if lines else ""


def _published(figure: Figure) -> str:
    if figure.slower == figure.faster:
        return _ms(figure.seconds)
    return f"{_ms(figure.seconds)} ({_ms(figure.faster)} to {_ms(figure.slower)})"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 1 else f"{1e3 * seconds:.1f}"
