"""A configuration that was searched for, and not named, is the user's own or root's: what it says
is run.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ullage.cli import run_cli
from ullage.ground.config.project_file import find_configuration, open_configuration
from ullage.ground.errors import SpecError

TEXT = '[watch.notify.own]\ncommand = "touch was-run"\n'
STRANGER = 4711


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with a configuration, and one below it."""
    (tmp_path / "project" / "below").mkdir(parents=True, mode=0o755)
    (tmp_path / "project" / "ullage.toml").write_text(TEXT)
    (tmp_path / "project" / "ullage.toml").chmod(0o644)
    return tmp_path / "project"


def refusal(project: Path) -> str:
    """What is said of the configuration."""
    with pytest.raises(SpecError) as caught:
        find_configuration(project / "below")
    return str(caught.value)


def test_ones_own_file_is_found_from_below(project: Path) -> None:
    assert find_configuration(project / "below") == project / "ullage.toml"


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file that others may write": (lambda each: (each / "ullage.toml").chmod(0o646), "toml'"),
    "a directory that others may write": (lambda each: each.chmod(0o757), "project'"),
    "a file that a group may write": (
        lambda each: (os.chown(each / "ullage.toml", -1, STRANGER),
                      (each / "ullage.toml").chmod(0o664)), "toml'"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_others_may_write_is_refused(project: Path, name: str) -> None:
    change, path = CHANGES[name]
    try:
        change(project)
    except PermissionError:
        pytest.skip("only root gives a file to another group")
    said = refusal(project)
    assert f"{path} can be written to by others" in said and "--config" in said
    named = open_configuration(project / "below", project / "ullage.toml")
    assert named is not None, "a file that was named is read"


@pytest.mark.parametrize("part", ["ullage.toml", ""])
def test_what_belongs_to_another_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    stranger = os.getuid() + 1  # as if the user were another than the owner
    real = Path.stat

    def stat(path: Path, **options: bool) -> object:
        held = real(path, **options)
        owner = stranger if path == project / part else held.st_uid
        return SimpleNamespace(st_uid=owner, st_gid=held.st_gid, st_mode=held.st_mode)

    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setattr(Path, "lstat", lambda path: stat(path, follow_symlinks=False))
    assert " belongs to " in refusal(project)


def test_a_sticky_directory_and_ones_own_group_are_no_danger(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda _number: SimpleNamespace(pw_name="me"))
    monkeypatch.setattr(grp, "getgrgid", lambda number: ("me", "x", number, []))
    project.chmod(0o1777)
    (project / "ullage.toml").chmod(0o664)
    assert find_configuration(project) == project / "ullage.toml"
    monkeypatch.setattr(grp, "getgrgid", lambda number: ("me", "x", number, ["somebody"]))
    assert "can be written to by others" in refusal(project)


def test_verbs_say_which_file_they_found(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "ullage.toml").write_text('[scenario.train]\ncommand = "train.py"\ngpu = "l4"\n')
    monkeypatch.chdir(project / "below")
    monkeypatch.setattr(
        "ullage.verbs.check.function.run_cases", lambda *_: pytest.fail("not refused")
    )
    assert run_cli(["check", "no-such-scenario"]) == 2
    assert f"ullage: configuration: {project / 'ullage.toml'}\n" in capsys.readouterr().err
    (project / "ullage.toml").chmod(0o666)
    assert run_cli(["check"]) == 2
    assert "can be written to by others" in capsys.readouterr().err


ENDLESS = (
    ("exec", "--plan", "/dev/zero", "--", "train.py"),
    ("exec", "--guard", "/dev/zero", "--", "train.py"),
    ("check", "--config", "/dev/zero"),
    ("front", "--config", "/dev/zero"),
    ("watch", "--alerts", "--config", "/dev/zero"),
    ("estimate", "/dev/zero", "--length", "8"),
    ("explain", "/dev/zero"),
)


@pytest.mark.parametrize("words", ENDLESS, ids=" ".join)
def test_a_file_without_an_end_is_refused(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(list(words)) == 2
    said = capsys.readouterr().err
    assert said.startswith("ullage: ") and said.count("\n") == 1
