"""The view of a search for a ladder."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.answers import block_kinds as b
from ullage.ground.units import format_bytes
from ullage.search.sizes.rungs import LadderReport
from ullage.verbs.fit.text import warning_lines


def ladder_line(report: LadderReport) -> str:
    """The result, in one line."""
    if report.failure:
        return f"failed: {report.failure}"
    where = f"{format_bytes(report.budget_bytes, 2)} of {report.gpu.slug}"
    rungs = f"{len(report.rungs)} rungs" if len(report.rungs) > 1 else "one rung"
    if not report.proved_to:
        return f"no {report.variable} fits {where}"
    line = f"{rungs} for {where}, proved up to {report.variable} {report.proved_to}"
    last = report.sizes[-1]
    return line if report.proved_to == last else f"{line}; no rung fits {last}"


def ladder_blocks(report: LadderReport) -> Iterator[b.Block]:
    """The rungs, and how far each is proved."""
    is_fine = report.proved_to == report.sizes[-1] and not report.failure
    yield b.Headline.of(ladder_line(report), b.Tone.GOOD if is_fine else b.Tone.BAD)
    yield b.Note(" ".join(report.program), b.Tone.FAINT, b.Overflow.CUT, indent=2)
    line = f"torch {report.torch}, {report.num_runs} runs in {report.wall_s:.1f} s, none on a GPU"
    yield b.Note(line, b.Tone.FAINT, indent=2)
    if not report.failure:
        yield b.SPACE
        yield _table(report)
    yield from warning_lines(report.warnings, report.left_out)
    sizes = ", ".join(map(str, report.sizes))
    yield b.Note(
        f"Basis: each rung ran on the phantom with {report.variable} {sizes}, from its first "
        "step on; what lies between is not proved. Times by the clock (`ullage run --time`)",
        is_apart=True,
    )


def _table(report: LadderReport) -> b.Table:
    rows: b.Rows = []
    for number, (rung, name) in enumerate(zip(report.rungs, report.names, strict=True)):
        proof = rung.proof
        rows.append(
            [
                str(number),
                "none" if proof is None else str(proof.size),
                "" if proof is None else format_bytes(proof.reserved_bytes, 2),
                "" if proof is None or not proof.step_s else f"{1e3 * proof.step_s:.2f} ms",
                name,
            ]
        )
    return b.Table(
        (b.RIGHT, b.RIGHT, b.RIGHT, b.RIGHT, b.LEFT),
        rows,
        ("rung", f"{report.variable} up to", "reserved", "step", "plan"),
        indent=0,
    )
