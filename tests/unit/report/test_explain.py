"""What an explained snapshot looks like, to the character, at 80 columns; and its document."""

from __future__ import annotations

import importlib.util
import json
import lzma
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.rows import each

from ullage.answers.text import print_blocks, render
from ullage.explain.rules.registry import RULES
from ullage.ground.units import MIB
from ullage.verbs.explain.function import Explanation, explain_file
from ullage.verbs.explain.text import explain_blocks, explain_line, rule_blocks

HERE = Path(__file__).parent
GOLDEN = HERE.parents[1] / "golden" / "snapshots"
# Its builder makes snapshots here, too.
_spec = importlib.util.spec_from_file_location("builder", HERE.parent / "explain" / "conftest.py")
assert _spec is not None and _spec.loader is not None
_builder = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_builder)

STEP = ("F x#+512@main:12>forward:30 y#+256@main:12>forward:31 f B g#+300=gradient x#- y#- b "
        "O o g#- S ")  # fmt: skip
LEAK = STEP.replace("x#- y#-", "x#-").replace("y#+256", "y#+450")
SCRIPTS = {
    "explain-fits": (
        "[2048 w+300@main:5=parameter m+600@main:8=optimizer_state "
        + " ".join(STEP.replace("#", str(n)) for n in range(5)), {"has_record": True}, "1GiB",
    ),
    "explain-recorded": (
        "[3900 w+300@main:5=parameter r+700@main:6 r~ a+1 b+1 c+1 a- b- c- "
        + " ".join("i#+96@main:11 i#< w~ ".replace("#", str(n)) + STEP.replace("#", str(n))
                   + f"i{n}-" for n in range(5)), {"has_record": True}, None,
    ),
    "explain-out-of-memory": (
        "[3900 w+300@main:5=parameter " + " ".join(LEAK.replace("#", str(n)) for n in range(6))
        + " F z+512@main:12>forward:30 !600:100", {"has_record": True}, None,
    ),
    "explain-fragmented": (
        "[1600 z+1600@main:3 z- "
        + " ".join(f"a{n}+100@main:4 k{n}+2@main:{n + 10}" for n in range(10)) + " "
        + " ".join(f"a{n}-" for n in range(10)) + " [1100 b+1100@main:30", {}, "200MiB",
    ),
}  # fmt: skip
RECORDINGS = {
    "explain-inference": "hanfa_small_inf512",
    "explain-state": "verl_state",
    "explain-inconsistent": "mosaic_SYNTHETIC",
}


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Explanation]:
    """An explained snapshot by the name of its text."""
    directory = tmp_path_factory.mktemp("explain")

    def make(name: str) -> Explanation:
        path, request = directory / f"{name}.pickle", None
        if name in RECORDINGS:
            packed = GOLDEN / f"{RECORDINGS[name]}.pickle.xz"
            path.write_bytes(lzma.decompress(packed.read_bytes()))
        else:
            script, options, request = SCRIPTS[name]
            builder = _builder.SnapshotBuilder()
            builder.add(script)
            path.write_bytes(pickle.dumps(builder.file(**({"has_record": False} | options))))
        return explain_file(path, request=request)

    return make


@pytest.mark.parametrize("name", [*SCRIPTS, *RECORDINGS])
def test_the_report_is_as_it_was_looked_at(
    explained: Callable[[str], Explanation], name: str
) -> None:
    explanation = explained(name)
    # The file's own path is another on each machine.
    text = explanation.text(full=True).replace(explanation.view.path, f"{name}.pickle")
    shown = "\n".join(
        f"  {name}.pickle" if line.endswith("…") and line.startswith("  /") else line
        for line in text.splitlines()
    )
    expected = HERE / f"{name}.txt"
    assert shown + "\n" == expected.read_text(encoding="utf-8")
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("name", [*SCRIPTS, *RECORDINGS])
def test_the_short_report_is_as_it_was_looked_at(
    explained: Callable[[str], Explanation], name: str
) -> None:
    text = explained(name).text()
    assert text == (HERE / f"{name}-brief.txt").read_text(encoding="utf-8")
    assert text.count("\n") <= 20 and max(map(len, text.splitlines())) <= 80


def test_the_short_report_stays_short_whatever_is_found(
    explained: Callable[[str], Explanation],
) -> None:
    """Every rule of a report that ran out of memory, each with long words."""
    view = explained("explain-out-of-memory").view
    fatal, *others = view.findings
    long = [replace(finding, what="word " * 99, change="word " * 99) for finding in others]
    text = render(explain_blocks(replace(view, findings=(fatal, *long * 9))))
    assert text.count("\n") <= 20 and max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("name", [*SCRIPTS, *RECORDINGS])
def test_the_document_says_the_same(explained: Callable[[str], Explanation], name: str) -> None:
    explanation = explained(name)
    document: dict[str, Any] = json.loads(json.dumps(explanation.document))
    assert document["schema"] == "ullage.explain/1"
    assert document["verdict"] == explain_line(explanation.view)
    codes = [finding["code"] for finding in document["findings"]]
    assert codes == [finding.rule.code for finding in explanation.findings]
    for device in document["devices"]:
        peak = device["peak"]
        assert sum(peak["by_category"].values()) == peak["allocated_bytes"]
        if not document["contradictions"]:
            kept = device["reserved"]
            parts = ("requested_bytes", "rounding_bytes", "cache_bytes", "hole_bytes",
                     "private_free_bytes")  # fmt: skip
            assert sum(kept[part] for part in parts) == kept["reserved_bytes"]


def test_out_of_memory_is_told_first_and_is_a_no(
    explained: Callable[[str], Explanation],
) -> None:
    explanation = explained("explain-out-of-memory")
    assert explanation.exit_code == 1
    assert explain_line(explanation.view).startswith("out of memory, leaked: ")
    document = explanation.document
    assert document["is_out_of_memory"]
    assert document["devices"][0]["out_of_memory"]["missing_bytes"] == 500 * MIB
    assert explained("explain-fits").exit_code == 0


def test_on_a_terminal_without_unicode_it_is_ascii(
    explained: Callable[[str], Explanation], tmp_path: Path
) -> None:
    with (tmp_path / "out.txt").open("w", encoding="ascii") as file:
        print_blocks(
            explain_blocks(explained("explain-fits").view), Console(file=file, width=80), full=True
        )
    assert "####" in (tmp_path / "out.txt").read_text(encoding="ascii")


@each("code", RULES)
def test_a_rule_is_documented_in_80_columns(code: str) -> None:
    text = render(rule_blocks(RULES[code]))
    assert text.startswith(f"{code} ")
    assert max(map(len, text.splitlines())) <= 80
    for part in ("What it means", "What it looks at", "What to do", "What that costs"):
        assert f"\n{part}\n" in text
