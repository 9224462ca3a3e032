"""Write the table of docs/reference/alerts.md from the default rules of `ullage watch --alerts`.

python -m benchmarks.alert_rules
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.written_part import fill_part
from ullage.watch.alerts.defaults import DEFAULTS
from ullage.watch.alerts.rule import Rule, Unit

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "alerts.md"
BEGIN = "<!-- rules: written by python -m benchmarks.alert_rules -->\n"
END = "<!-- end rules -->\n"


def render(page: str) -> str:
    """The page with the table of today's rules."""
    return fill_part(page, BEGIN, END, _table())


def _table() -> tuple[str, ...]:
    head = "| rule | measures | alert | for | over | for | window | `least` | severity |"
    return ("", head, "|---" * 9 + "|", *map(_row, DEFAULTS), "")


def _row(rule: Rule) -> str:
    kind, seconds = rule.kind, Unit.SECONDS.format
    side, calm = ("below", "at least") if kind.is_below else ("above", "at most")
    least = f"{Unit.SHARE.format(rule.least)}: {kind.least_says}" if kind.least_says else ""
    cells = (
        f"`{rule.name}`",
        kind.says,
        f"{side} {kind.unit.format(rule.threshold)}",
        seconds(rule.for_s),
        f"{calm} {kind.unit.format(rule.clear)}",
        seconds(rule.clear_for_s),
        seconds(rule.window_s) if kind.can_look_back else "",
        least,
        rule.severity.value,
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Rewrite the table."""
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"Wrote {PAGE}")


if __name__ == "__main__":
    main()
