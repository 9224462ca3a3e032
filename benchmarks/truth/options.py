"""What a call of the benchmark may run, and with which interpreters."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.provenance import torch_version
from benchmarks.results import published
from benchmarks.versions import VERSIONS

ROOT: Final = Path(__file__).resolve().parents[2]
BY_NIGHT: Final = "runs by night alone (--tier night)"
_DATE: Final = re.compile(r"^Made by .*? on (\d{4}-\d\d-\d\d)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Options:
    """Of a call.

    Attributes:
        is_night: what is costly runs, too.
        pythons: interpreters by the version of their torch.
        work: a folder for what runs leave.
        has_programs: the public programs ran in this call, so that their results are of today.
    """

    is_night: bool
    pythons: Mapping[str, Path]
    work: Path
    has_programs: bool = False

    def python_of(self, torch: str) -> Path | None:
        """The last interpreter with a version of torch, such as "2.11."; None: there is none."""
        found = [path for version, path in self.pythons.items() if version.startswith(torch)]
        return found[-1] if found else None

    def needs(self, torch: str) -> str:
        """Why a case that needs a version of torch was not run."""
        return f"needs an interpreter with torch {torch} (--python)"


def now() -> str:
    """Of a case that was run in this call."""
    return f"now {datetime.datetime.now(datetime.UTC):%Y-%m-%d}"


def recorded(name: str) -> str:
    """Of a case whose result is kept in the repository: the day of the section that shows it."""
    match = _DATE.search(published(name)[0])
    if match is None:
        raise SystemExit(f"docs/results: {name} does not say when it was made; write it anew")
    return f"recorded {match[1]}"


def default_pythons() -> list[Path]:
    """The environments of benchmarks.versions that are there."""
    paths = [ROOT / ".envs" / f"torch-{version}" / "bin" / "python" for version in VERSIONS]
    return [path for path in paths if path.exists()]


def by_version(pythons: list[Path]) -> dict[str, Path]:
    """The interpreters by the version of their torch, such as "2.11.0+cu130"."""
    return {torch_version(path): path for path in pythons}
