"""The site of `make docs`: a link to a page or a heading that is not there ends the build."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "# A guide\n\n[{text}]({link}) [code](../../src/ullage/ground/units.py)\n\n## A heading\n"


def build(directory: Path, link: str) -> subprocess.CompletedProcess[str]:
    """A site of two pages, one of which has a link."""
    pytest.importorskip("myst_parser", reason="the extra docs is not installed")
    for folder in ("guide", "reference", "results", "design"):
        (directory / "docs" / folder).mkdir(parents=True)
        (directory / "docs" / folder / "page.md").write_text(
            PAGE.format(text="a", link="#a-heading")
        )
    (directory / "docs" / "README.md").write_text(f"# Documents\n\n[guide]({link})\n")
    shutil.copy(DOCS / "conf.py", directory / "docs")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "--fail-on-warning",
        "-b",
        "html",
        "docs",
        "site",
    ]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("link", ["guide/page.md", "guide/page.md#a-heading"])
def test_links_that_lead_somewhere_make_a_site(tmp_path: Path, link: str) -> None:
    done = build(tmp_path, link)
    assert done.returncode == 0, done.stderr
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert f'href="{link.replace(".md", ".html")}"' in index
    page = (tmp_path / "site" / "guide" / "page.html").read_text(encoding="utf-8")
    assert "units.py" not in page, "what is not in the site is no link"


@pytest.mark.slow
@pytest.mark.parametrize("link", ["guide/none.md", "guide/page.md#no-heading"])
def test_a_dead_link_ends_the_build(tmp_path: Path, link: str) -> None:
    done = build(tmp_path, link)
    assert done.returncode != 0
    assert "README.md:3" in done.stderr
