"""`ullage what-if`: what cannot be answered is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ullage.cli import run_cli


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "No such file"),
        (["--gpu", "l5"], "l5"),
        (["--memory", "80G"], "two ways"),
        (["-o", "page.html"], "would hold a page, which this answer does not have"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "missing.pickle")
    assert run_cli(["what-if", missing, *options]) == 2
    assert message in capsys.readouterr().err
