"""The commands that the documents tell people to type, and the workflows of docs/guide/check.md."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp

import click
import pytest
from benchmarks.documents.blocks import all_pages
from tests.rows import each

from ullage.cli import cli
from ullage.verbs.check.gate.cache import CACHE_NAME

ROOT = Path(__file__).parents[2]
PAGES = [page.path for page in all_pages()]
BLOCK = re.compile(r"^```(console|sh|bash|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PREFIX = re.compile(r"^\s*(?:- run:|entry:|-|\$)\s+(.*)$")
SEPARATORS = {"&&", "||", ";", "|", "&", ">", "2>", "<"}


def blocks(text: str, kinds: str) -> list[str]:
    return [block for kind, block in BLOCK.findall(text) if kind in kinds.split()]


def commands(block: str) -> Iterator[list[str]]:
    """Each call of ullage, as words."""
    for line in block.replace("\\\n", " ").splitlines():
        typed = PREFIX.match(line)
        words = shlex.split(typed[1], comments=True) if typed else []
        call: list[str] = []
        for word in [*words, ";"]:
            if word not in SEPARATORS:
                call.append(word)
                continue
            if call[:1] == ["ullage"]:
                yield call
            call = []


CALLS = {
    f"{page.name}: {shlex.join(call)}": call
    for page in PAGES
    for block in blocks(page.read_text(encoding="utf-8"), "console sh bash yaml")
    for call in commands(block)
}


@each("typed", CALLS, name=str)
def test_every_command_in_the_documents_can_be_typed(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, folder = CALLS[typed], Path(mkdtemp(dir=tmp_path))  # no command finds another's files
    monkeypatch.chdir(folder)
    for name in (after for word, after in pairwise(call) if word == "-r"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    with click.Context(cli) as context:
        command = cli.get_command(context, call[1])
        assert command is not None, f"there is no verb {call[1]!r}"
        command.make_context(call[1], call[2:])


def workflows() -> dict[str, str]:
    """The workflows of docs/guide/check.md."""
    text = (ROOT / "docs" / "guide" / "check.md").read_text(encoding="utf-8")
    return dict(zip(("github", "gitlab", "pre-commit"), blocks(text, "yaml"), strict=True))


def option(block: str, name: str) -> str:
    """What `ullage check` is given in a workflow."""
    (check,) = (call for call in commands(block) if call[1] == "check")
    return check[check.index(name) + 1]


@pytest.mark.parametrize("name", ["github", "gitlab"])
def test_a_workflow_keeps_and_uses_what_it_makes(name: str) -> None:
    block = workflows()[name]
    (made,) = (call[2] for call in commands(block) if call[1] == "env")
    assert option(block, "--python") == f"{made}/bin/python"
    assert f"test -e {made}/ullage-env.json ||" in block
    kept = re.findall(r"^\s+path: (\S+)$", block, re.MULTILINE)
    kept += [path for row in re.findall(r"paths: \[(.*)\]", block) for path in row.split(", ")]
    assert {made, CACHE_NAME} <= set(kept)
    pages = option(block, "--pages")
    assert f"path: {pages}," in block or pages in kept
    if name == "gitlab":
        assert f"junit: {option(block, '-o')} }}" in block


def test_pre_commit_installs_the_hook_that_the_documents_name() -> None:
    hook = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    text = (ROOT / "docs" / "guide" / "check.md").read_text(encoding="utf-8")
    (name,) = re.findall(r"^- id: (\S+)$", hook, re.MULTILINE)
    assert f"Its hook is `{name}`" in text
    assert next(commands(hook)) == ["ullage", "check"]
