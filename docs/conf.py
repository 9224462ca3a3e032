"""The pages of this folder as a site: `make docs`.

Every warning is an error, so that a link to a page or a heading that is not there ends the build.
GitHub shows the same pages without it: they are plain Markdown, and `toctree` is added here.
"""

import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from sphinx.application import Sphinx

project = "ullage"
extensions = ["myst_parser"]
root_doc = "README"
exclude_patterns = ["monitoring"]
html_title = "ullage"
html_show_sourcelink = False
myst_heading_anchors = 4  # as GitHub names them

_LINK = re.compile(r"\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_CONTENTS = """
```{{toctree}}
:hidden:
:glob:
:caption: {}
{}/*
```
"""


def read_page(app: Sphinx, name: str, source: list[str]) -> None:
    """Leaves out links to folders, and to files beside `docs`; adds the contents to the index."""
    page = Path(app.srcdir, name).parent

    def link(match: re.Match[str]) -> str:
        path = urlsplit(match[2]).path
        target = (page / path).resolve()
        is_page = target.is_relative_to(app.srcdir) and not target.is_dir()
        return match[0] if not path or "://" in match[2] or is_page else match[1]

    parts = _FENCED.split(source[0])
    parts[::2] = [_LINK.sub(link, part) for part in parts[::2]]
    if name == root_doc:
        folders = ("guide", "reference", "results", "design")
        parts += [_CONTENTS.format(folder.title(), folder) for folder in folders]
    source[0] = "".join(parts)


def write_index(app: Sphinx, error: Exception | None) -> None:
    """The index is README.md on GitHub, and index.html for a server."""
    if error is None:
        shutil.copy(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls it."""
    app.connect("source-read", read_page)
    app.connect("build-finished", write_index)
    return {"parallel_read_safe": True}
