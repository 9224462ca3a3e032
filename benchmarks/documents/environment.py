"""An environment that has torch and ullage, made in a moment of two that have one each."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from benchmarks.documents.blocks import ROOT

_COMMAND = "#!{python}\nfrom ullage.cli import main\n\nmain()\n"


def join_environments(directory: Path, torch_python: Path, installed: Path | None = None) -> None:
    """Makes a virtual environment with what is installed for `torch_python` and beside ullage.

    Its modules are those of the two: nothing is copied. Commands of both are found by PATH alone.
    ullage is that of the clone, or of the interpreter `installed`.
    """
    subprocess.run([torch_python, "-m", "venv", "--without-pip", directory], check=True)
    python = directory / "bin" / "python"
    # ullage's own come last: torch's environment has the versions that its programs were given.
    own = Path(sysconfig.get_path("purelib")) if installed is None else _site_packages(installed)
    source = (ROOT / "src",) if installed is None else ()
    paths = (*source, _site_packages(torch_python), own)
    lines = "".join(f"{path}\n" for path in paths)
    (_site_packages(python) / "joined.pth").write_text(lines, encoding="utf-8")
    command = directory / "bin" / "ullage"
    command.write_text(_COMMAND.format(python=python), encoding="utf-8")
    command.chmod(0o755)


def search_path(
    directory: Path, torch_python: Path, installed: Path | None = None
) -> tuple[Path, ...]:
    """Where its commands are, and those of the two."""
    return directory / "bin", torch_python.parent, (installed or Path(sys.executable)).parent


def _site_packages(python: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return Path(done.stdout.strip())
