"""README and docs print what their commands print, and name nothing that is not there.

After a change of output, `python -m benchmarks.documents --write` rewrites the pages, with
`--nightly` also what takes long; `--check` in its place compares, as the tests here do.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tomllib
from pathlib import Path

import click
import pytest
from benchmarks import alert_rules, rules
from benchmarks.accuracy.estimate.__main__ import read_vectors
from benchmarks.accuracy.estimate.page import write_page
from benchmarks.documents.__main__ import rewrite
from benchmarks.documents.blocks import ROOT, Block, Page, all_pages, parse_blocks, read_page
from benchmarks.documents.names import find_problems, missing_options, options_of, spans_of
from benchmarks.documents.outputs import is_same, refresh
from benchmarks.documents.play import Result, is_never_run, is_played, needs_phantom, play
from benchmarks.plans import page as plans
from benchmarks.plans.results import saved
from benchmarks.provenance import made_by
from benchmarks.results import RESULTS, divide, published, read_rows
from tests.rows import each

import ullage
from ullage.cli import cli
from ullage.explain.basis import BasisKind
from ullage.facts.families.architecture import MODEL_TYPES
from ullage.facts.families.builtin import load_models
from ullage.facts.gpus import load_catalog
from ullage.operate.front.settings import load_front
from ullage.operate.watch.alerts.rules_file import load_settings
from ullage.players.phantom.torch_build import find_torch
from ullage.verbs.check.gate.config import load_configuration
from ullage.verbs.command_line.command import Verb
from ullage.verbs.views.palette import (
    CACHE_LOOK,
    CATEGORY_LOOKS,
    CONTEXT_LOOK,
    FREE_LOOK,
    NON_TORCH_LOOK,
)

PAGES = {page.name: page for page in all_pages()}
BLOCKS = {block.name: block for page in PAGES.values() for block in page.blocks}
TORCH = "2.15.0"  # whose figures the pages have
KINDS = {"console", "text", "python", "json", "toml", "yaml", ""}
MADE_BY = re.compile(
    r"^Made by `(?:python -m [\w.]+|python tests/[\w./]+|make \w+)(?: [\w./-]+)*` on "
    r"\d{4}-\d\d-\d\d(?:; \d{4}-\d\d-\d\d)* with (?:torch|ullage) \d",
    re.MULTILINE,
)


def make_page(text: str) -> Page:
    return Page(ROOT / "docs" / "page.md", text, parse_blocks("docs/page.md", text))


def compare(page: Page, python: Path | None, *, nightly: bool) -> None:
    results = list(play(page, python, nightly=nightly))
    failures = [f"{one.block.name}: $ {text}" for one in results for text in one.failures]
    hint = "python -m benchmarks.documents --write"
    assert not failures, "\n".join((*failures, f"If that is right: {hint} {page.name}"))


def names(*, phantom: bool) -> list[str]:
    """Pages with something to run, on the phantom or without it."""
    by_day = {block.page for block in BLOCKS.values() if is_played(block) and not block.is_nightly}
    with_commands = [PAGES[name] for name in sorted(by_day)]
    return [page.name for page in with_commands if needs_phantom(page) == phantom]


@pytest.fixture(scope="module")
def newest_python(thin_python: Path) -> Path:
    version = find_torch(str(thin_python)).version
    if version.partition("+")[0] != TORCH:
        pytest.skip(f"the figures are those of torch {TORCH}, and this is {version}")
    return thin_python


@pytest.mark.slow
@pytest.mark.parametrize("name", names(phantom=False))
def test_a_page_shows_what_its_commands_print(name: str) -> None:
    compare(PAGES[name], None, nightly=False)


@pytest.mark.slow
@pytest.mark.phantom
@pytest.mark.parametrize("name", names(phantom=True))
def test_a_page_shows_what_its_commands_print_on_the_phantom(
    name: str, newest_python: Path
) -> None:
    compare(PAGES[name], newest_python, nightly=False)


@pytest.mark.phantom
@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", sorted({block.page for block in BLOCKS.values() if block.is_nightly})
)
def test_a_page_shows_what_its_long_commands_print(name: str, newest_python: Path) -> None:
    compare(PAGES[name], newest_python, nightly=True)


@each("block", BLOCKS.values(), name=lambda block: block.name)
def test_a_block_is_run_or_says_why_not(block: Block) -> None:
    assert block.kind in KINDS
    if block.is_written or block.kind in ("json", "toml", "yaml", "text") or block.file:
        return
    if not block.is_run:
        assert block.why_not, "a comment before the block is to say why it is not run"
        if not block.kind or any(command.prints for command in block.commands):
            assert block.is_dated, "its output needs the date and the command that made it"
        return
    assert block.kind in ("console", "python")
    for command in block.commands:
        if is_never_run(block, command):
            assert not command.prints, f"{command.typed} is never run, and yet prints something"


@each("name", [*PAGES, "CHANGELOG.md"])
def test_what_a_page_names_is_there(name: str) -> None:
    page = read_page(ROOT / name)
    assert find_problems(page) == []
    outside = re.sub(r"^```.*?^```$", "", page.text, flags=re.MULTILINE | re.DOTALL)
    typed = re.findall(r"^    (?:\$ |ullage |python3? |pip |make ).*$", outside, re.MULTILINE)
    assert name == "CHANGELOG.md" or not typed, "commands belong in a ```console block"


def test_what_is_not_there_is_found() -> None:
    page = make_page(
        "# One\n[a](#one) [b](#two) [c](none.md) [d](../README.md#accuracy) [e](https://x)\n"
        '<source srcset="../README.md"><img src="none.png">\n'
        "`ullage run --gpu l4 --nothing -- train.py --any` `--batch-size` `--nothing-either`\n"
        "`tests/phantom/test_none.py` `python -m benchmarks.none` `ullage.run` `ullage.walk`\n"
        "`benchmarks/documents/*.py` `ullage guess` `clock/nothing.py` `clock/kernels.py`\n"
    )
    found = [problem.removeprefix("docs/page.md: ") for problem in find_problems(page)]
    assert found == [
        "the link #two leads to no heading",
        "the link none.md leads to no file",
        "the link https://x is no address",
        "the link none.png leads to no file",
        "there is no option --nothing in `ullage run --gpu l4 --nothing -- train.py --any`",
        "there is no option --nothing-either in `--nothing-either`",
        "there is no `tests/phantom/test_none.py`",
        "there is no module benchmarks.none",
        "there is no ullage.walk",
        "there is no verb in `ullage guess`",
        "there is no `clock/nothing.py`",
    ]


@pytest.mark.parametrize("folder", ["src", "benchmarks", "examples"])
def test_commands_that_the_code_names_can_be_typed(folder: str) -> None:
    problems = [
        f"{path.relative_to(ROOT)}: {problem}"
        for path in ROOT.glob(f"{folder}/**/*.py")
        for span in spans_of(path.read_text(encoding="utf-8"))
        if span.startswith("ullage ")
        for problem in missing_options(span)
    ]
    assert not problems


def test_the_table_of_options_of_run_is_complete() -> None:
    _, _, table = PAGES["docs/reference/run.md"].text.partition("## Options")
    rows = [row for row in table.partition("\n## ")[0].splitlines() if row.startswith("| `-")]
    named = {option for row in rows for option in re.findall(r"--[a-z][a-z-]+", row.split("|")[1])}
    assert named == {name for name in options_of("run") if name.startswith("--")} - {"--help"}


def test_the_index_names_every_page() -> None:
    index = PAGES["docs/README.md"].text
    pages = {name for name in PAGES if name.startswith("docs/")} - {"docs/README.md"}
    assert not [name for name in pages if f"({name.removeprefix('docs/')})" not in index]


def test_the_page_of_rules_has_the_rules_of_today() -> None:
    page = PAGES["docs/reference/rules.md"].text
    assert page == rules.render(page), "python -m benchmarks.rules"


def test_the_page_of_alert_rules_has_the_rules_of_today() -> None:
    page = PAGES["docs/reference/alerts.md"].text
    assert page == alert_rules.render(page), "python -m benchmarks.alert_rules"


def test_the_glossary_has_the_terms_of_reports() -> None:
    page = PAGES["docs/reference/glossary.md"].text
    terms = re.findall(r"^\| ([\w ]+) \| .+ \| \[.+\]\(.+\) \|$", page, re.MULTILINE)
    assert terms == sorted(terms, key=str.lower)
    assert page.count("\n| ") == len(terms) + 1, "each term has a meaning and a link"
    looks = (*CATEGORY_LOOKS.values(), CACHE_LOOK, CONTEXT_LOOK, FREE_LOOK, NON_TORCH_LOOK)
    shown = {*(look.label for look in looks), *(kind.value for kind in BasisKind)}
    assert shown | {"reserved", "rung", "owner", "phantom", "allocated", "peak"} <= {*terms}


@pytest.mark.parametrize(
    ("page", "command", "rows"),
    [("run-document", "run-gpt2", "devices"), ("fit-document", "fit-plan", "candidates")],
)
def test_the_page_of_a_document_names_its_fields(page: str, command: str, rows: str) -> None:
    text = PAGES[f"docs/reference/{page}.md"].text
    golden = ROOT / "tests" / "golden" / "commands" / f"{command}.json"
    document = json.loads(golden.read_text(encoding="utf-8"))["document"]
    names = {*document, *document[rows][0]}
    assert not [name for name in names if f"`{name}`" not in text]


PARTS = {
    name: (page, text.strip())
    for page in PAGES.values()
    if page.name.startswith("docs/results/")
    for name, text in re.findall(
        r"<!-- ([\w-]+): written by [^\n]* -->\n(.*?)<!-- end \1 -->", page.text, re.DOTALL
    )
}


def test_a_part_of_results_says_what_made_it_when_and_with_what() -> None:
    assert MADE_BY.match(made_by("benchmarks.speed.run", torch="2.15.0+cu132"))
    assert MADE_BY.match(made_by("benchmarks.speed.ui"))
    measured = {name: text for name, (_, text) in PARTS.items() if "not measured" not in text}
    assert [name for name, text in measured.items() if not MADE_BY.search(text)] == []


def test_each_report_has_a_part_and_each_part_a_report() -> None:
    others = ("tests/fuzz/run.py", "tests/programs/plans/matrix.py")
    sources = [*ROOT.glob("benchmarks/**/*.py"), *(ROOT / name for name in others)]
    names = {
        name
        for path in sources
        for name in re.findall(r'\bpublish\(\s*"([\w-]+)"', path.read_text(encoding="utf-8"))
    }
    assert names | {"accuracy-h100", "accuracy-h200"} == set(PARTS)


def test_pages_of_results_are_few_and_short() -> None:
    pages = [page for page in PAGES.values() if page.name.startswith("docs/results/")]
    assert len(pages) <= 16
    assert [page.name for page in pages if page.text.count("\n") > 120] == []
    tables = {page.name: re.findall(r"^\|[-:| ]+\|$", page.text, re.MULTILINE) for page in pages}
    assert [name for name, found in tables.items() if len(found) > 5] == []


def test_guides_are_short() -> None:
    counts = {name: len(PAGES[name].text.split()) for name in PAGES if "/guide/" in name}
    assert not {name: count for name, count in counts.items() if count > 900}


def test_each_table_beside_the_pages_is_linked_with_its_rows() -> None:
    linked: dict[str, str] = {}
    for page in PAGES.values():
        if page.name.startswith("docs/results/"):
            linked |= dict(re.findall(r"\]\(([\w.-]+)\.csv\)(?: \(([\d,]+)\))?", page.text))
    assert sorted(linked) == sorted(path.stem for path in RESULTS.glob("*.csv"))
    counted = {name: int(text.replace(",", "")) for name, text in linked.items() if text}
    assert counted == {name: len(read_rows(name)) for name in counted}


def test_the_accuracy_of_estimates_is_that_of_today() -> None:
    assert without_made(divide("estimate-accuracy", write_page(read_vectors()))) == without_made(
        published("estimate-accuracy")
    )


def test_the_page_of_plans_is_that_of_the_kept_results() -> None:
    assert divide("fit-results", plans.render(list(saved()))) == published("fit-results")


def without_made(report: tuple[str, str]) -> tuple[list[str], str]:
    section, rows = report
    return [line for line in section.splitlines() if not line.startswith("Made by")], rows


@pytest.mark.parametrize(
    "block", [one for one in BLOCKS.values() if one.kind in ("json", "toml")], ids=lambda b: b.name
)
def test_a_file_in_a_page_can_be_read(block: Block, tmp_path: Path) -> None:
    if block.kind == "toml":
        # Which the page speaks of.
        shutil.copytree(ROOT / "examples" / "serving", tmp_path, dirs_exist_ok=True)
        (tmp_path / "ullage.toml").write_text(block.text, encoding="utf-8")
        if block.text.startswith("[watch."):
            assert load_settings(tmp_path).path is not None
            return
        if block.text.startswith("[front]"):
            (tmp_path / "keys").mkdir()
            for tenant in ("chat", "batch"):
                (tmp_path / "keys" / tenant).write_text(tenant * 8, encoding="utf-8")
            assert load_front(tmp_path).engines
            return
        if block.text.startswith("[run]"):
            with contextlib.chdir(tmp_path):
                for name in tomllib.loads(block.text):
                    verb = cli.get_command(click.Context(cli), name)
                    assert isinstance(verb, Verb)
                    options = verb.read(verb.make_context(name, ["x"]))[0]
                    assert options.gpu
            return
        assert load_configuration(tmp_path).scenarios
    elif json.loads(block.text)["schema"] == "ullage.plan/1":
        path = tmp_path / "plan.json"
        path.write_text(block.text, encoding="utf-8")
        assert ullage.Plan.load(path).actions


PRINTED = ["peak 8.1 GiB", "  torch 2.15.0+cu132, 6 runs in 4.8 s", "total  9 GiB", "", "end"]


def test_times_and_versions_may_differ_and_figures_may_not() -> None:
    later = [*PRINTED]
    later[1] = "  torch 2.16.0, 6 runs in 12.3 s"
    assert is_same(PRINTED, later)
    assert not is_same(PRINTED, [*later[:2], "total  8 GiB", *later[3:]])
    assert not is_same(PRINTED, PRINTED[:3])


def test_three_dots_stand_for_any_lines() -> None:
    assert is_same(["peak 8.1 GiB", "...", "end"], PRINTED)
    assert is_same(["...", "total  9 GiB", "..."], PRINTED)
    assert not is_same(["peak 8.1 GiB", "...", "total  9 GiB"], PRINTED)
    assert not is_same(["...", "total  8 GiB", "..."], PRINTED)


def test_an_excerpt_is_refreshed_by_its_words() -> None:
    page = ["peak 7.0 GiB", "...", "total  7 GiB", "..."]
    assert refresh(page, PRINTED) == ["peak 8.1 GiB", "...", "total  9 GiB", "..."]
    assert refresh(["...", "another line", "..."], PRINTED) is None
    assert refresh(["old"], PRINTED) == PRINTED
    later = [line.replace("4.8 s", "12.3 s") for line in PRINTED]
    assert refresh(["old", PRINTED[1]], later) == PRINTED, "times alone change nothing"


def test_a_changed_output_is_a_failure_and_is_rewritten(tmp_path: Path) -> None:
    text = "```console\n$ echo peak 2 GiB\npeak 1 GiB\n$ false    # exits with 1\n```\nafter\n"
    page = make_page(text)
    results: list[Result] = list(play(page, None))
    assert [one.failures for one in results] == [
        ("echo peak 2 GiB\nprints otherwise:\npeak 2 GiB\n",)
    ]
    assert rewrite(text, results) == (text.replace("1 GiB", "2 GiB"), [])


def test_a_command_that_fails_is_a_failure_though_nothing_is_printed() -> None:
    page = make_page("```console\n$ ullage estimate no-such-model-anywhere --nothing\n```\n")
    (result,) = play(page, None)
    assert "exits with 2" in result.failures[0]


def test_a_script_that_raises_is_a_failure() -> None:
    page = make_page("```python\nimport ullage\n\nullage.no_such_verb()\n```\n")
    (result,) = play(page, None)
    assert "AttributeError" in result.failures[0]


def test_a_page_that_fails_keeps_what_it_shows() -> None:
    text = "```console\n$ echo part; ullage estimate nothing-of-this-name\nfits\n```\n"
    results = list(play(make_page(text), None))
    assert results[0].failures
    assert rewrite(text, results) == (text, [])


def test_counts_in_the_pages_are_those_of_the_catalogues() -> None:
    for name, pattern, count in (
        ("README.md", r"lists the (\d+) GPUs of the catalogue", len(load_catalog())),
        ("docs/guide/estimate.md", r"one of (\d+) built-in\s+models", len(load_models())),
        ("docs/results/serving.md", r"(\d+) values of\s+`model_type`", len(MODEL_TYPES)),
    ):
        assert re.findall(pattern, PAGES[name].text) == [str(count)]
