"""docs/results/accuracy.md: every log, its figures, ours and the difference."""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.accuracy.logs.row import MIB, Result, Row
from benchmarks.provenance import made_by

REPOSITORY = "openai/parameter-golf"
COMMIT = "4908dc46f21ed3fdd08d2fdca285deb2194b9599"
_COLUMNS = (
    "log", "GPU", "torch, log", "torch, here", "allocated, log", "here, warm", "here, cold",
    "difference", "reserved, log", "here", "width", "inside", "s",
)  # fmt: skip


def render(rows: Sequence[Row], results: Mapping[str, Result], origin: str = "") -> str:
    """The page.

    Args:
        origin: where the programs come from, if not from a checkout at the commit.
    """
    done = [(row, results[row.name]) for row in rows if row.name in results]
    missing = [row.name for row in rows if row.name not in results]
    versions = ", ".join(sorted({result.torch for _, result in done}))
    lines = [f"| {' | '.join(_COLUMNS)} |", "|---|---|---|---" + "|--:" * 8 + "|---|--:|"]
    lines += [_line(row, result) for row, result in done]
    notes = [f"- `{row.name}`: {row.note}." for row in rows if row.note]
    notes += [
        f"- `{row.name}`, interval: {'; '.join(result.assumptions)}."
        for row, result in done
        if result.assumptions
    ]
    left_out = f"\nNot run: {', '.join(missing)}.\n" if missing else ""
    disclosed = f"\n**What these rows are.** {origin}\n" if origin else ""
    return f"""# Public logs of compiled training

{made_by("benchmarks.accuracy.logs --checkout DIR", torch=versions)}

{_summary(done)}

Eight training programs (`torch.compile`, DDP on 8 ranks, optimizers of their own) have public logs
from eight H100 or H200, which end with the peaks of PyTorch's allocator on rank 0. They are
variants of one code base, [{REPOSITORY}](https://github.com/{REPOSITORY}) at commit
`{COMMIT[:12]}`; they are not part of this repository, and none of their figures was used to build
ullage. Each runs here as rank 0 of 8 on the phantom, with random tokens, for five steps.
{disclosed}
Figures are whole MiB, rounded down. *Cold* is what the run allocates, *warm* that without what
Inductor allocates to time kernels; logs are of both. *Difference* is how far the log is above or
below these two. The interval is `ullage run`'s for the reserved peak.

{chr(10).join(lines)}
{left_out}
{chr(10).join(notes)}
"""


def origin_of(checkout: Path) -> str:
    """What is to be told of programs that are not a checkout at the commit; else nothing.

    Such a folder says itself in SOURCES.txt where its programs come from.
    """
    try:
        head = subprocess.check_output(
            ["git", "-C", str(checkout), "rev-parse", "HEAD"], text=True, stderr=subprocess.DEVNULL
        ).strip()
    except (OSError, subprocess.CalledProcessError):
        head = ""
    if head == COMMIT:
        return ""
    sources = checkout / "SOURCES.txt"
    if not sources.exists():
        return "The programs are not those of a checkout at that commit."
    return "\n".join(textwrap.wrap(sources.read_text(encoding="utf-8").strip(), 100))


def _line(row: Row, result: Result) -> str:
    gap = max((result.gap(mib) for mib in row.allocated_mib), key=abs)
    inside = sum(result.holds(mib) for mib in row.reserved_mib)
    interval = f"{result.low_bytes // MIB:,} to {result.high_bytes // MIB:,}"
    cells = [
        f"`{row.name}`", row.gpu, row.torch_of_log, result.torch, _mib(row.allocated_mib),
        f"{result.warm_mib:,}", f"{result.allocated_mib:,}", f"{gap:+,}" if gap else "0",
        _mib(row.reserved_mib), interval, f"{result.width:.1%}",
        f"{inside} of {len(row.reserved_mib)}", f"{result.wall_s:.0f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _mib(figures: Sequence[int]) -> str:
    """Figures of several runs; once where they are equal."""
    return ", ".join(f"{figure:,}" for figure in dict.fromkeys(figures))


def _summary(done: Sequence[tuple[Row, Result]]) -> str:
    """How many figures are met, in a sentence."""
    gaps = [max(abs(result.gap(mib)) for mib in row.allocated_mib) for row, result in done]
    figures = [result.holds(mib) for row, result in done for mib in row.reserved_mib]
    is_narrow = [result.width <= 0.05 for _, result in done]
    return (
        f"**Allocated: within 4 MiB in {sum(gap <= 4 for gap in gaps)} of {len(gaps)} logs, "
        f"{max(gaps, default=0):,} MiB off at most. Reserved: {sum(figures)} of {len(figures)} "
        f"figures inside the interval, which is at most 5 % wide in {sum(is_narrow)} of "
        f"{len(done)} logs.**"
    )
