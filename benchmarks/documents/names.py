"""What pages name has to exist: links and their anchors, files, options, verbs, modules.

for problem in find_problems(page):
    print(problem)                  # docs/guide/fit.md: no file `tests/phantom/test_x.py`
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from urllib.parse import urlsplit

import click

import ullage
from benchmarks.documents.blocks import ROOT, Page
from ullage.cli import VERBS, cli

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
_LINK = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^()\s]+(?:\([^()\s]*\))?)\)")
_PICTURE = re.compile(r'\b(?:src|srcset)="([^"]+)"')
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_FILE = re.compile(r"(?:[\w*.-]+/)*[\w*-]+\.(?:py|c|h|md|toml|json|jsonl|txt|svg)")
_FOLDER = re.compile(r"(?:tests|benchmarks|examples|docs|src)/[\w*/.-]+")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+\b")
_BENCHMARK = re.compile(r"\bbenchmarks(?:\.[a-z]\w*)+")
# Not a document's schema, "ullage.plan/1", nor a table of pyproject.toml, [tool.ullage.front].
_NAME = re.compile(
    r"(?<!tool\.)\bullage((?:\.(?!toml\b|lock\b|scenario\b)[a-zA-Z]\w*)+)(?!/\d|\w|\.\w)"
)

# Options of other programs that pages speak of.
FOREIGN_OPTIONS = {
    "--attn-implementation": "transformers serve",
    "--cb-block-size": "transformers serve",
    "--cb-max-batch-tokens": "transformers serve",
    "--cb-max-memory-percent": "transformers serve",
    "--cb-num-blocks": "transformers serve",
    "--continuous-batching": "transformers serve",
    "--no-enable-chunked-prefill": "vllm serve",
    "--no-enable-prefix-caching": "vllm serve",
    "--kv-offloading-size": "vllm serve",
    "--kv-transfer-config": "vllm serve",
    "--nproc-per-node": "torchrun",
    "--pdb": "pytest",
    "--save-detailed": "vllm bench serve",
    "--save-result": "vllm bench serve",
}
# Files of users, and of other projects.
FOREIGN_FILES = {
    "_memory_viz.py": "PyTorch",
    "cache_utils.py": "transformers",
    "config.json": "a model",
    "config/scheduler.py": "vLLM",
    "generation/continuous_batching/cache.py": "transformers",
    "layers/mamba/mamba_utils.py": "vLLM",
    "platforms/interface.py": "vLLM",
    "ladder.json": "written by `ullage fit --ladder`",
    "truth.json": "written by benchmarks/accuracy/record.py",
    "truth/h200-torch2.11.0/truth.json": "written by benchmarks/accuracy/record.py",
    "truth/h200-torch2.11.0/events.npz": "written by benchmarks/accuracy/record.py",
    "v1/core/kv_cache_utils.py": "vLLM",
    "v1/kv_cache_interface.py": "vLLM",
}


def find_problems(page: Page) -> list[str]:
    """What a page names and is not there."""
    text = _FENCED.sub("", page.text)
    problems = [*_dead_links(page, text)]
    for span in spans_of(text):
        problems += [*_missing_files(page, span), *missing_options(span), *_missing_modules(span)]
    for block in page.blocks:
        problems += _missing_files(page, (block.why_not or "").replace(";", " "))
        if block.kind == "console":
            problems += _missing_modules(block.text)
    return [f"{page.name}: {problem}" for problem in dict.fromkeys(problems)]


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCED.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        number = 0
        while (anchor := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(anchor)
    return found


def _dead_links(page: Page, text: str) -> Iterator[str]:
    prose = _CODE.sub("", text)
    for target in [*_LINK.findall(prose), *_PICTURE.findall(prose)]:
        if "://" in target:
            url = urlsplit(target)
            if url.scheme not in ("http", "https") or "." not in url.netloc:
                yield f"the link {target} is no address"
            continue
        name, _, anchor = target.partition("#")
        file = (page.path.parent / name).resolve() if name else page.path
        if name and not file.exists():
            yield f"the link {target} leads to no file"
            continue
        if anchor and anchor not in anchors(file.read_text("utf-8") if name else page.text):
            yield f"the link {target} leads to no heading"


def _missing_files(page: Page, span: str) -> Iterator[str]:
    for word in span.split():
        word = word.partition("::")[0].rstrip("/,;.")
        if word in FOREIGN_FILES or word.startswith(("http", "-")):
            continue
        named = _FILE.fullmatch(word) or _FOLDER.fullmatch(word)
        if named and not _is_in_repository(page, word):
            yield f"there is no `{word}`"


def _is_in_repository(page: Page, name: str) -> bool:
    if any(base.glob(name) and next(base.glob(name), None) for base in (ROOT, page.path.parent)):
        return True
    pattern = re.compile(r"(?:.*/)?" + re.escape(name).replace(r"\*", "[^/]*"))
    return any(pattern.fullmatch(path) for path in _tracked())


@cache
def _tracked() -> tuple[str, ...]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return tuple(done.stdout.splitlines())


def spans_of(text: str) -> list[str]:
    """What stands between backticks."""
    return [span.replace("\n", " ") for span in _CODE.findall(text)]


def missing_options(span: str) -> Iterator[str]:
    """Options and verbs in a span that no verb has, and no program that is known here."""
    words = span.split()
    verb = words[1] if words[:1] == ["ullage"] and len(words) > 1 else None
    if verb is not None and re.fullmatch(r"[a-z]+", verb) and verb not in VERBS:
        yield f"there is no verb in `{span}`"
        return
    own = span.partition(" -- ")[0] if verb else span
    known = options_of(verb) if verb in VERBS else _all_options()
    for option in _OPTION.findall(own):
        if option not in known and option not in FOREIGN_OPTIONS:
            yield f"there is no option {option} in `{span}`"


@cache
def options_of(verb: str) -> frozenset[str]:
    """The options of a verb, short ones too."""
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None, f"{verb} is a verb of the table"
    options = (one for one in command.params if isinstance(one, click.Option))
    return frozenset(name for one in options for name in (*one.opts, *one.secondary_opts, "--help"))


@cache
def _all_options() -> frozenset[str]:
    """Of all verbs, of the plugin of pytest, and of the programs in examples and benchmarks."""
    sources = [ROOT / "src/ullage/pytest_plugin.py", *ROOT.glob("src/ullage/verbs/testing/*.py")]
    sources += [*ROOT.glob("examples/*/*.py"), *ROOT.glob("benchmarks/**/*.py")]
    sources += ROOT.glob("tests/programs/**/*.py")
    of_programs = {
        option
        for source in sources
        for option in re.findall(r"[\"'](--[a-z][a-z-]+)[\"']", source.read_text(encoding="utf-8"))
    }
    return frozenset(of_programs).union(*(options_of(verb) for verb in VERBS))


def _missing_modules(text: str) -> Iterator[str]:
    for module in _BENCHMARK.findall(text):
        if not _is_module(module):
            yield f"there is no module {module}"
    for path in _NAME.findall(text):
        if not _is_name(path.split(".")[1:]):
            yield f"there is no ullage{path}"


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a package that is not there
        return False


def _is_name(names: list[str]) -> bool:
    """Whether these are attributes of ullage, or modules and then attributes."""
    value: object = ullage
    path = "ullage"
    for name in names:
        path = f"{path}.{name}"
        if hasattr(value, name):
            value = getattr(value, name)
        elif _is_module(path):
            value = importlib.import_module(path)
        else:
            return False
    return True
