"""What files of ours tell of their owner: no secret of a command line, and to nobody else where
others can write beside them.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.rows import each

from ullage.ground.files import keep_file, make_directory, write_text
from ullage.ground.printable import hide_secrets
from ullage.log.reader import read_record
from ullage.operate.watch.recording import Recording
from ullage.players.inside.process.record_file import program_fields
from ullage.verbs.check.gate.cache import Cache
from ullage.verbs.command_line.crash import crash_report, write_crash

STRANGER = 4711
WORDS = (
    ("train.py --api-key=hf_1", "train.py --api-key=***"),
    ("train.py --api_key hf_1 --lr 1", "train.py --api_key *** --lr 1"),
    ("train.py HF_TOKEN=a WANDB_API_KEY=b", "train.py HF_TOKEN=*** WANDB_API_KEY=***"),
    ("train.py hub.token=a +wandb.apikey=b", "train.py hub.token=*** +wandb.apikey=***"),
    ("train.py --password --fast", "train.py --password --fast"),
    ("train.py --aws-secret-access-key=a=b", "train.py --aws-secret-access-key=***"),
    ("train.py --data https://me:word@host/a", "train.py --data https://***@host/a"),
    ("train.py --max-tokens 8 --tokenizer t", "train.py --max-tokens 8 --tokenizer t"),
    ("train.py --pad_token=0 --author me", "train.py --pad_token=0 --author me"),
    ("train.py tokens=5 --key-dim=64", "train.py tokens=5 --key-dim=64"),
)


@each(("words", "hidden"), WORDS)
def test_values_of_secrets_are_hidden(words: str, hidden: str) -> None:
    assert " ".join(hide_secrets(words.split())) == hidden
    assert hide_secrets(hidden.split()) == tuple(hidden.split())


def test_a_record_has_none(
    tmp_path: Path, make_fields: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--api-key=hf_1"])
    torch = SimpleNamespace(__version__="2", version=SimpleNamespace(cuda="13"))
    fields = program_fields(torch, 0.0, {})  # type: ignore[arg-type, typeddict-item]
    assert fields["argv"] == ["train.py", "--api-key=***"]
    path = tmp_path / "1.record"  # of an ullage that kept them
    path.write_bytes(pickle.dumps(make_fields("+4") | {"argv": sys.argv}))
    assert read_record(path).argv == ("train.py", "--api-key=***")


def test_a_report_of_a_defect_has_none() -> None:
    text = crash_report(ValueError(), ["fit", "--token=hf_1", "--", "--api-key=hf_1"])
    assert "--token=***" in text and "hf_1" not in text


@pytest.fixture(params=["as it runs", "as an ordinary user"])
def user(request: pytest.FixtureRequest) -> Iterator[None]:
    """Root, if the tests are run by root, and somebody else; with a umask of most systems."""
    is_other = request.param == "as an ordinary user"
    if is_other and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    mask = os.umask(0o022)
    if is_other:
        os.setegid(65534)
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_other:
            os.seteuid(0)
            os.setegid(0)
        os.umask(mask)


@contextlib.contextmanager
def directory_of(mode: int) -> Iterator[Path]:
    """A directory with a mode, which any user reaches."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(mode)
        yield Path(name)


def write_all(place: Path) -> dict[str, int]:
    """The modes of files and directories of ours, by their names."""
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "source"
        source.write_text("whole")
        keep_file(source, place / "kept", force=False)
    write_text("text", place / "written", force=False)
    with Recording(place / "recording", force=False):
        pass
    make_directory(place / "folder")
    Cache(place / ".ullage_cache")._make()
    # By its descriptor, since the checkout may lie where an ordinary user does not reach its path.
    before = os.open(".", os.O_RDONLY)
    os.chdir(place)
    try:
        write_crash(ValueError(), [])
    finally:
        os.fchdir(before)
        os.close(before)
    modes = {path.name[:12]: path.stat().st_mode & 0o777 for path in place.iterdir()}
    assert len(modes) == 6, modes
    return modes


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize("mode", [0o1777, 0o2770, 0o757])
def test_a_file_beside_which_others_write_is_its_owners_alone(mode: int) -> None:
    with directory_of(mode) as place:
        user = os.geteuid()
        if os.getuid() == 0:
            os.seteuid(0)  # who alone gives a directory to another group
            os.chown(place, user, STRANGER)
        elif not mode & stat.S_IWOTH:
            pytest.skip("only root gives a directory to another group")
        place.chmod(mode)
        os.seteuid(user)
        assert set(write_all(place).values()) == {0o600, 0o700}


@pytest.mark.parametrize("mode", [0o755, 0o2775], ids=oct)
def test_elsewhere_as_beside_the_users_own_group_the_umask_decides(mode: int) -> None:
    mask = os.umask(0o022)
    try:
        with directory_of(mode) as place:
            assert set(write_all(place).values()) == {0o644, 0o755}
    finally:
        os.umask(mask)
