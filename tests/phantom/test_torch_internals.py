"""Which of the private names that ullage uses the environment's torch has, printed with -s."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from benchmarks.versions import VERSIONS

import ullage
from ullage.players.inside.torch_internals import INTERNALS

pytestmark = [pytest.mark.phantom, pytest.mark.nightly]
SOURCE = Path(ullage.__file__).parent.parent
LIST = Path(__file__).with_name("missing_internals.py")


def parse_version(version: str) -> tuple[int, ...]:
    """ "2.15.0+cu132" as (2, 15)."""
    return tuple(int(part) for part in version.split(".")[:2])


def expect_missing(version: str) -> set[str]:
    """What the table says that a version does not have."""
    own = parse_version(version)
    return {
        each.path
        for each in INTERNALS
        if (each.since and own < parse_version(each.since))
        or (each.until and own >= parse_version(each.until))
    }


def test_the_table_knows_what_this_torch_lacks(thin_python: Path, torch_version: str) -> None:
    command = [str(thin_python), "-W", "ignore", str(LIST), str(SOURCE)]
    completed = subprocess.run(command, check=True, capture_output=True, text=True)
    missing = set(json.loads(completed.stdout.splitlines()[-1]))
    print(f"torch {torch_version} lacks {len(missing)} of {len(INTERNALS)} private names:")
    for path in sorted(missing):
        print(f"  {path}")
    assert missing == expect_missing(torch_version)


def test_versions_in_the_table_are_among_those_that_are_tried() -> None:
    newest = parse_version(VERSIONS[-2])
    versions = {
        parse_version(text) for each in INTERNALS for text in (each.since, each.until) if text
    }
    assert all(
        version > newest or version in map(parse_version, VERSIONS[:-1]) for version in versions
    )
