"""`ullage explain`: what it prints, what it exits with, and what it refuses."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from ullage.cli import run_cli

GOLDEN = Path(__file__).parents[1] / "golden" / "snapshots"


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A recording of a GPU, with expandable segments."""
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(lzma.decompress((GOLDEN / "bol_xl_fwd512.pickle.xz").read_bytes()))
    return path


@pytest.fixture
def ullage(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`ullage("explain", path)`: exit code, stdout and stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        code = run_cli([str(word) for word in words])
        out, err = capfd.readouterr()
        return code, out, err

    return run


Ullage = Callable[..., tuple[int, str, str]]


def test_a_snapshot_is_explained(ullage: Ullage, snapshot: Path) -> None:
    code, out, err = ullage("explain", snapshot, "--full")
    assert (code, err) == (0, "")
    assert out.startswith("peak 39.6 GiB, 68 % activations (guessed)")
    assert "cs336_basics/model.py:40 in forward" in out
    assert "einops" not in out


def test_by_default_it_is_short(ullage: Ullage, snapshot: Path) -> None:
    code, out, _ = ullage("explain", snapshot)
    assert code == 0 and out.count("\n") <= 20
    assert "UL125" in out and "--full prints the evidence" in out


def test_a_request_is_answered(ullage: Ullage, snapshot: Path) -> None:
    assert "A request of 1.0 GiB there" in ullage("explain", snapshot, "--request", "1GiB")[1]


def test_json_is_one_document_which_o_writes_too(
    ullage: Ullage, snapshot: Path, tmp_path: Path
) -> None:
    path = tmp_path / "out.json"
    code, out, err = ullage("explain", snapshot, "--json", "-o", path, "--request", "1GiB")
    assert code == 0
    assert json.loads(out) == json.loads(path.read_text())
    request = json.loads(out)["devices"][0]["reserved"]["request"]
    assert request == {"bytes": 1 << 30, "room_for": 0}
    assert f"Wrote {path}" in err


def test_a_file_that_exists_is_not_overwritten(
    ullage: Ullage, snapshot: Path, tmp_path: Path
) -> None:
    path = tmp_path / "out.json"
    path.write_text("mine")
    code, _, err = ullage("explain", snapshot, "-o", path)
    assert code == 2
    assert "exists" in err
    assert path.read_text() == "mine"


def test_a_rule_is_documented_without_a_file(ullage: Ullage) -> None:
    code, out, _ = ullage("explain", "UL111")
    assert code == 0
    assert out.startswith("UL111 a loss or an output is kept with its graph")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "missing argument 'FILE'"),
        (("UL999",), "there is no rule 'UL999'"),
        (("nowhere.pickle",), "nowhere.pickle"),
        ((__file__,), "it is text; expected what"),
    ],
)
def test_what_cannot_be_explained_gets_one_message_and_2(
    ullage: Ullage, words: tuple[str, ...], message: str
) -> None:
    code, out, err = ullage("explain", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_a_size_that_is_none_is_refused(ullage: Ullage, snapshot: Path) -> None:
    code, _, err = ullage("explain", snapshot, "--request", "80G")
    assert code == 2
    assert "two ways" in err


def test_the_help_names_the_exit_codes() -> None:
    from ullage.verbs.explain.command import explain_command

    text = CliRunner().invoke(explain_command, ["--help"]).output
    assert "Exits with 0, 1 if" in text


def test_a_page_is_written_where_it_is_asked_for(
    ullage: Ullage, snapshot: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    code, out, _ = ullage("explain", snapshot, "-o", page)
    assert code == 0
    assert f"Wrote {page}" in out
    assert "snapshot.pickle" in page.read_text(encoding="utf-8")
    page.write_text("mine")
    assert ullage("explain", snapshot, "-o", page)[0] == 2
    assert page.read_text() == "mine"


def test_a_snapshot_is_exported_in_several_formats_at_once(
    ullage: Ullage, snapshot: Path, tmp_path: Path
) -> None:
    paths = [tmp_path / name for name in ("peak.folded", "blocks.csv", "again.ullage")]
    options = [word for path in paths for word in ("-o", path)]
    code, out, _ = ullage("explain", snapshot, *options)
    assert code == 0
    assert [f"Wrote {path}" for path in paths] == out.splitlines()[-3:]
    assert ullage("explain", paths[2]) == ullage("explain", snapshot)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("-o", "a.csv", "-o", "a.csv"), "--output and --output both name"),
        (("-o", "no/where.csv"), "there is no directory 'no'"),
        (("-o", "a.csv", "--share", "b.pickle"), "-o does not go with --share"),
        (("--json", "--share", "b.pickle"), "--json does not go with --share"),
        (("--python", "python"), "--python is of use only with --try-remedies"),
    ],
)
def test_an_export_that_cannot_be_is_refused_before_the_work(
    ullage: Ullage, snapshot: Path, options: tuple[str, ...], told: str
) -> None:
    code, out, err = ullage("explain", snapshot, *options)
    assert (code, out) == (2, "")
    assert told in err


def test_a_page_of_two_snapshots(ullage: Ullage, snapshot: Path, tmp_path: Path) -> None:
    page, document = tmp_path / "diff.html", tmp_path / "diff.json"
    code, out, _ = ullage("diff", snapshot, snapshot, "-o", page, "-o", document)
    assert code == 0
    assert out.startswith("the peaks are the same: 39.")
    text = page.read_text()
    assert text.count('class="run"') == 2 and 'data-how="comparison"' in text
    found = json.loads(document.read_text())
    assert (found["causes"], found["by_site"], found["changed_allocated_bytes"]) == ([], [], 0)
    assert ullage("diff", snapshot, snapshot, "-o", page)[0] == 2
