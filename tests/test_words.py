"""Words that stand for no noun or verb of the field, in help, messages, pages and docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.documents.blocks import all_pages

ROOT = Path(__file__).parent.parent
# What ends a phrase: "as it is" at the end of one says nothing, and "as it is read" does.
END = r"(?=$|[.,;:)\]\"'`])"
# No noun but a grade or a pronoun: "is no longer", "is no larger than", "there is no such".
GRADES = (
    "better|different|earlier|faster|higher|larger|later|less|longer|lower|more|need|one|only|other"
    "|slower|smaller|such|wider|worse"
)
# Each with what to write in its place.
PHRASES = {
    "depends on, is limited by": r"\b(?:hang|hangs|hanging|hung) on\b(?! to\b)",
    "this many, or the noun": r"\bso (?:many|much)\b(?![^.;:]* (?:that|as)\b)",
    "releases": r"\blet(?:s|ting)? go of\b",
    "unchanged": r"(?<!far )(?<!long )\bas (?:it is|they are)" + END,
    "as in ...": r"\bas [^.,;:|]*(?:has|have) (?:it|them)\b",
    "is not a ...": rf"(?<!here )\b(?:is|are|was|were) no (?!(?:{GRADES})\b)",
    "the field's noun": (
        r"\bwhat (?:(?:the|a|an|its|their|every|each) )?[\w'`]+ (?:has|have)"
        r"(?=$|[.,;:)\"]| (?:in|of|on|for|from|at|there|free|now|beside)\b)"
    ),
}
ANY = {instead: re.compile(phrase, re.IGNORECASE) for instead, phrase in PHRASES.items()}
# Blocks of other programs' output, code, and what a benchmark writes: its own words are in code.
QUOTED = re.compile(
    r"^```.*?^```$|<!-- ([\w.-]+): written by.*?<!-- end \1 -->|`[^`\n]+`", re.MULTILINE | re.DOTALL
)
# Of docstrings, and of the strings below variables.
FIRST_WORD = re.compile(r'^ *r?"""\s*(?:What|Whether|Of)\b', re.MULTILINE)
STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"|`([^`]*)`')  # of C and JavaScript


def phrases(text: str) -> Iterator[str]:
    """Each phrase of the list in a text, with what to write in its place."""
    text = " ".join(text.split())
    for instead, pattern in ANY.items():
        for match in pattern.finditer(text):
            around = text[max(match.start() - 30, 0) : match.end() + 30]
            yield f"...{around}... write: {instead}"


def texts_of(path: Path) -> Iterator[str]:
    """The strings of a file; of one of Python its docstrings, too."""
    content = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from (match[1] or match[2] or "" for match in STRING.finditer(content))
        return
    # Most files have none of the words anywhere; these are not parsed.
    if not any(phrases(content)):
        return
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.JoinedStr):
            parts = (one.value if isinstance(one, ast.Constant) else "{}" for one in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_pages_have_the_words_of_the_field() -> None:
    pages = {page.name: QUOTED.sub(" `` ", page.text) for page in all_pages()}
    pages["SECURITY.md"] = QUOTED.sub("", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert [f"{name}: {one}" for name, text in pages.items() for one in phrases(text)] == []


def test_messages_and_docstrings_have_the_words_of_the_field() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {one}"
        for path in (ROOT / "src").rglob("*")
        if path.suffix in {".py", ".c", ".h", ".js"}
        for text in texts_of(path)
        for one in phrases(text)
    }
    assert sorted(found) == []


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0].strip()} ..."
        for path in sorted((ROOT / "src").rglob("*.py"))
        for match in FIRST_WORD.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('def f():\n    """Whether it fits."""', 1),
        ('x = 1\n"""Of a step."""', 1),
        ('r"""\n    What it is.\n    """', 1),
        ('def f():\n    """Offers what it has."""', 0),
    ],
    ids=["function", "variable", "next line", "later word"],
)
def test_a_first_word_is_found(text: str, count: int) -> None:
    assert len([*FIRST_WORD.finditer(text)]) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("It hangs on matrix products.", 1),
        ("The step hangs\n    on the host.", 1),
        ("It holds on to the GPU.", 0),
        ("After so many steps the run ends.", 1),
        ("There are so many that they fill the file.", 0),
        ("It lets go of the lock.", 1),
        ("The file stays as it is.", 1),
        ("The file is taken as it is read.", 0),
        ("The name, as CUDA has it.", 1),
        ("The file is no plan.", 1),
        ("There is no plan.", 0),
        ("It is no longer used.", 0),
        ("What the device has free.", 1),
        ("What the device has done.", 0),
    ],
)
def test_a_phrase_is_found(text: str, count: int) -> None:
    assert len([*phrases(text)]) == count
