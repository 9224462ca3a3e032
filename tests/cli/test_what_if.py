"""`ullage explain --what-if`: options that would go unheard are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ullage.cli.main import run_cli

WRONG = (
    (["--gpu", "l4"], "--gpu is of use only with --what-if"),
    (["--memory", "24GiB"], "--memory is of use only with --what-if"),
    (["--python", "python"], "--python is of use only with --what-if"),
    (["--what-if", "--html", "page.html"], "--html does not go with --what-if"),
    (["--what-if", "--request", "2GiB"], "--request does not go with --what-if"),
)


@pytest.mark.parametrize(("options", "message"), WRONG, ids=lambda value: str(value)[:24])
def test_an_option_that_would_go_unheard_is_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["explain", "snapshot.pickle", *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "No such file"),
        (["--gpu", "l5"], "l5"),
        (["--memory", "80G"], "two ways"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "missing.pickle")
    assert run_cli(["explain", missing, "--what-if", *options]) == 2
    assert message in capsys.readouterr().err
