"""Write the table of docs/reference/rules.md from the rules of `ullage explain`.

python -m benchmarks.rules
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.written_part import fill_part
from ullage.explain.rules.registry import RULES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "rules.md"


def render(page: str) -> str:
    """The page with the table of today's rules."""
    return fill_part(page, "rules", "\n".join(_table()))


def _table() -> tuple[str, ...]:
    rows = [f"| {rule.code} | {rule.kind.value} | {rule.title} |" for rule in RULES.values()]
    return ("| code | kind | finding |", "|---|---|---|", *rows)


def main() -> None:
    """Rewrite the table."""
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"Wrote {PAGE}")


if __name__ == "__main__":
    main()
