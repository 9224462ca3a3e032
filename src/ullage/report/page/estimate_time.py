"""The time of a step on the page of an estimate."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ullage.clock.price import Expense
from ullage.clock.step_time import StepTime
from ullage.report.palette import IDLE_LOOK, kind_look
from ullage.report.text.time.numbers import format_as, format_share
from ullage.report.text.time.section import expense_line, time_line


def draw_time(time: StepTime, expense: Expense | None, num_gpus: int) -> str:
    """The section: the time, what it is made of, and what it rests on."""
    rows = [(kind_look(kind.name).label, kind.exposed.s, kind.busy.s) for kind in time.categories]
    rows.append((IDLE_LOOK.label, time.device_idle.s, 0.0))
    cells = "".join(_row(label, alone, busy, time.step.s) for label, alone, busy in rows)
    heads = "".join(
        f'<th scope="col" class="{kind}">{name}</th>'
        for name, kind in (
            ("kind of work", ""), ("alone", "number"), ("of the step", "number"),
            ("hidden", "number"),
        )
    )  # fmt: skip
    cost = "" if expense is None else f"<p>{escape(expense_line(expense))}</p>"
    return (
        f"<h2>Time of a step</h2><p><b>{escape(time_line(time, num_gpus))}</b></p>{cost}"
        f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{cells}</tbody></table>'
        f"</div>{_basis(time.basis)}"
    )


def _row(label: str, exposed_s: float, busy_s: float, step_s: float) -> str:
    hidden_s = max(0.0, busy_s - exposed_s)
    hidden = format_as(hidden_s, step_s) if hidden_s > 5e-3 * step_s else ""
    texts = (format_as(exposed_s, step_s), format_share(exposed_s, step_s), hidden)
    rest = "".join(f'<td class="number">{text}</td>' for text in texts)
    return f'<tr><th scope="row">{escape(label)}</th>{rest}</tr>'


def _basis(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<details><summary>The times rest on</summary><ul>{items}</ul></details>"
