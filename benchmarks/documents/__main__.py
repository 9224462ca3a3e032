"""Compare what pages print with what their commands print, or rewrite it: see the package."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.documents.blocks import ROOT, Block, Page, all_pages, read_page
from benchmarks.documents.outputs import refresh
from benchmarks.documents.play import Result, needs_phantom, play

PYTHON = ROOT / ".envs" / "torch-newest" / "bin" / "python"


def rewrite(text: str, results: list[Result]) -> tuple[str, list[str]]:
    """The page's text with what is printed now, and what a person has to choose."""
    undecided: list[str] = []
    for result in reversed(results):  # so that places before stay what they are
        block = result.block
        if block.kind != "console":
            continue
        body, left = _render(block, result)
        undecided += left
        text = text[: block.start] + body + text[block.end :]
    return text, undecided


def _render(block: Block, result: Result) -> tuple[str, list[str]]:
    lines: list[str] = []
    undecided: list[str] = []
    for command, printed in zip(block.commands, result.printed, strict=True):
        lines.append(f"$ {command.typed}")
        shown = refresh(command.printed, printed) if command.prints else list(command.printed)
        if shown is None:
            undecided.append(f"{block.name}: {command.typed}\n" + "\n".join(printed))
        lines += command.printed if shown is None else shown
    return "".join(f"{line}\n" for line in lines), undecided


def run_page(page: Page, python: Path, *, nightly: bool, write: bool) -> bool:
    """Compares or rewrites a page; says whether all is well."""
    results = []
    for result in play(page, python if needs_phantom(page) else None, nightly=nightly):
        results.append(result)
        for failure in result.failures:
            print(f"{result.block.name}: $ {failure}", file=sys.stderr, flush=True)
    if not write:
        return not any(result.failures for result in results)
    text, undecided = rewrite(page.text, results)
    if text != page.text:
        page.path.write_text(text, encoding="utf-8")
        print(f"Wrote {page.name}")
    for left in undecided:
        print(f"Choose by hand what to show of\n{left}", file=sys.stderr)
    exits = [failure for one in results for failure in one.failures if "exits with" in failure]
    return not undecided and not exits


def main() -> None:
    """Compare or rewrite the pages that are named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="*", type=Path)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="compare alone; the default")
    mode.add_argument("--write", action="store_true", help="rewrite what has changed")
    parser.add_argument("--nightly", action="store_true", help="run what takes long, too")
    parser.add_argument("--python", type=Path, default=PYTHON, help="an interpreter with torch")
    args = parser.parse_args()
    pages = [read_page(path.resolve()) for path in args.pages] or all_pages()
    # Not resolved: a virtual environment's python is a link to what it was made with.
    python = args.python.absolute()
    fine = [run_page(page, python, nightly=args.nightly, write=args.write) for page in pages]
    sys.exit(0 if all(fine) else 1)


if __name__ == "__main__":
    main()
