"""A report becomes a section of a page and rows of a CSV, and nothing of it is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import results
from benchmarks.results import divide, page_of, publish, published, read_rows
from benchmarks.written_part import fill_part, read_part

MADE = "Made by `python -m benchmarks.any` on 2026-11-30 with ullage 0.1.0."
SHORT = "| case | GPU | |\n|---|---|--:|\n| `a` | l4 | 1 |\n| **b \\| c** | h200 | 2 |"
REPORT = f"""# A title

{MADE}

Some words
that go on.

{SHORT}

## Other GPUs

Of these alone:

| case | peak | error | time | error |
|---|---|---|---|---|
| a | 1 | 2 % | 3 | 4 % |

It stands on one run.

The error is **2 %**.

## Left out

- one: not run

## Remarks

{"".join(f"- remark {number}{chr(10)}" for number in range(7))}
"""


def test_the_first_short_table_stays_and_the_words_of_the_others_go_with_them() -> None:
    section, rows = divide("any", REPORT)
    assert section.split("\n\n") == [
        "## A title", f"{MADE} Rows: [any.csv](any.csv) (11).", "Some words that go on.", SHORT,
        "### Other GPUs", "The error is **2 %**.", "### Left out", "- one: not run",
    ]  # fmt: skip
    assert rows.splitlines()[:6] == [
        "table,case,GPU,remark,peak,error,time,time: error,note",
        ",a,l4,1,,,,,",
        ",b | c,h200,2,,,,,",
        "Other GPUs: Of these alone,a,,,1,2 %,3,4 %,",
        "Other GPUs,,,,,,,,It stands on one run.",
        "Remarks,,,,,,,,remark 0",
    ]


def test_a_long_table_is_rows_alone_and_one_table_needs_no_name() -> None:
    rows = "".join(f"| {number} |\n" for number in range(results.MOST_ROWS + 1))
    section, table = divide("any", f"# T\n\n{MADE}\n\nThese:\n\n| a |\n|---|\n{rows}")
    assert section == f"## T\n\n{MADE} Rows: [any.csv](any.csv) (7)."
    assert table.splitlines()[:2] == ["table,a", "These,0"]
    assert divide("any", f"# T\n\n{MADE}\n\n| a |\n|---|\n{rows}")[1].startswith("a\n0\n")


def test_a_report_replaces_its_part_of_a_page_and_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n<!-- any: written by x -->\nold\n<!-- end any -->\nrest\n")
    publish("any", REPORT)
    assert page.read_text() == fill_part(page.read_text(), "any", divide("any", REPORT)[0])
    assert page.read_text().startswith("# Page\n\n<!-- any: written by x -->\n## A title\n")
    assert page.read_text().endswith("<!-- end any -->\nrest\n")
    assert published("any") == divide("any", REPORT)
    assert read_rows("any")[1]["case"] == "b | c"
    with pytest.raises(ValueError, match=r"no page of .* has <!-- other: written by"):
        page_of("other")


def test_a_page_without_the_part_is_refused() -> None:
    assert read_part("# Page", "any") == ""
    with pytest.raises(ValueError, match="<!-- any: written by"):
        fill_part("# Page", "any", "text")
