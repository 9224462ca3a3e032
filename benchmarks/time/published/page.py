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
of a step after warm-up as an interval. How a program differs from the published one is in the CSV;
those of parameter-golf were written off copies
([logs](accuracy.md#public-logs-of-compiled-training)). A prediction is printed and stored before
the published figure is read.

Nothing was fitted to these figures, but they were known to one who wrote the clock: T1 and T3 ran
on H100s of 500 W and 2.4 TB/s, which got a row in the catalogue after a first comparison, and two
causes were looked for because all rows but one had been predicted too fast (a rank waits for the
slowest GPU of its job; long products take as long as those of random numbers): before them the
median error was 11.7 %, the ninth decile 18.5 %, and 6 of the 9 pairs were named right. Both stand
on measurements of [kernels](#kernel-times) and GPUs, not of steps.

Times are milliseconds a step, of several published runs the median. *Error* is that of the likely
time: above 0 where the prediction is too slow.
"""
MISSES = """## What misses, and why it may

- Nearly every row is predicted too fast still: the likely time leaves out a lowered power limit
  (the
  H100s of T1 and T3 had 500 W of 700), ranks that are late for another reason than their GPU, the
  reading of data, and what the host does besides launching kernels.
- `TrainingOptSeq4096` misses because of its data: the 19 windows of its logs in which no shard ends
  take 51.8 to 52.6 ms a step, the 68 in which one does 65 to 85. Against steps without it the
  prediction is 2 % too fast.
- `XSA4_EMA` is too slow, since torch's FlashAttention 2 stands for FlashAttention 3.
- Float8 (T1c, T3c) is nearest of the rows on torchtitan's H100s: the tables of products in float8
  have NVIDIA's quantisation in them, which errs to the other side.
"""
PHANTORA = """## Beside Phantora

[Phantora](https://github.com/QDelta/Phantora) (NSDI 2026), which needs a real GPU and a patched
torch, was held against the same pages of torchtitan; its README (at 060071d) has a mean and a
maximum of eight runs. Not all eight are rows here, nor are all ten rows here among them.

| | runs of torchtitan | mean error | most |
|---|--:|--:|--:|
| Phantora | 8 | 2.9% | 8.5% |
| ullage | {num} | {mean:.1%} | {most:.1%} |
"""
PAIRS = """## Pairs of settings

All pairs of rows of one model that differ in one setting of rows.csv, then all that differ in two;
the second's time as a share of the first's. Within 1 % of each other a right order is luck.
"""
COLUMNS = (
    "family", "row", "GPU", "torch", "torch here", "published", "low", "likely", "high", "error",
    "inside",
)  # fmt: skip


def render(figures: Sequence[Figure], predictions: Mapping[str, Prediction]) -> str:
    """The page."""
    rows = compare(figures, predictions)
    parts = [HEAD.format(made_by=_made_by(predictions), summary=_summary(rows))]
    parts += [_families(rows), _table(rows, predictions)]
    parts += [_pairs(rows), _kinds(rows, predictions), MISSES]
    parts += [_beside(rows), _settings(figures), _missing(figures, predictions)]
    return "\n".join(part for part in parts if part)


def _made_by(predictions: Mapping[str, Prediction]) -> str:
    versions = sorted({made.torch for made in predictions.values() if made.torch})
    return made_by("benchmarks.time.published --programs DIR", torch=", ".join(versions) or None)


def _summary(rows: Sequence[Comparison]) -> str:
    if not rows:
        return "**No row has been run.**"
    total = score(rows)
    one, two = (list(pairs(rows, num_changed)) for num_changed in (1, 2))
    return (
        f"**{total.count} rows: median error {total.median:.1%}, ninth decile "
        f"{total.ninth_decile:.1%}, the published time inside the interval in {total.inside:.0%}; "
        f"of {len(one)} pairs that differ in one setting the faster run is named in {_right(one)}, "
        f"of {len(two)} that differ in two in {_right(two)}.**"
    )


def _beside(rows: Sequence[Comparison]) -> str:
    """Phantora's own figures, and ours on torchtitan."""
    errors = [abs(row.error) for row in rows if row.figure.family.startswith("torchtitan")]
    if not errors:
        return ""
    return PHANTORA.format(num=len(errors), mean=sum(errors) / len(errors), most=max(errors))


def _right(named: Sequence[Pair]) -> int:
    return sum(pair.is_named_right for pair in named)


def _table(rows: Sequence[Comparison], predictions: Mapping[str, Prediction]) -> str:
    lines = ["## Rows\n", f"| {' | '.join(COLUMNS)} |", "|---" * 5 + "|--:" * 5 + "|---|"]
    for row in rows:
        figure = row.figure
        cells = (
            figure.family, f"`{figure.name}`", figure.gpu, figure.torch,
            predictions[figure.name].torch,
            _published(figure), _ms(row.low_s), _ms(row.likely_s), _ms(row.high_s),
            f"{row.error:+.1%}", "yes" if row.is_inside else "no",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _families(rows: Sequence[Comparison]) -> str:
    lines = ["| family | rows | median error | ninth decile | inside | rank correlation |"]
    lines.append("|---" + "|--:" * 5 + "|")
    for family, members in families(rows).items():
        result, correlation = score(members), rank_correlation(members)
        cells = (
            family, str(result.count), f"{result.median:.1%}", f"{result.ninth_decile:.1%}",
            f"{result.inside:.0%}", "" if correlation is None else f"{correlation:.2f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _pairs(rows: Sequence[Comparison]) -> str:
    named = [*pairs(rows, 1), *pairs(rows, 2)]
    if not named:
        return ""
    lines = [
        PAIRS,
        "| first | second | changed | published | likely | named right |",
        "|---|---|---|--:|--:|---|",
    ]
    for pair in named:
        published = pair.second.figure.seconds / pair.first.figure.seconds
        likely = pair.second.likely_s / pair.first.likely_s
        lines.append(
            f"| `{pair.first.figure.name}` | `{pair.second.figure.name}` | "
            f"{', '.join(pair.changed)} | {published:.3f} | {likely:.3f} | "
            f"{'yes' if pair.is_named_right else 'no'} |"
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
