"""A file appears whole, under a name that nobody else has, or not at all."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from ullage.ground.files import NotWrittenError, is_stream, keep_file, write_text


@pytest.fixture(params=["links", "no links", "another file system"])
def source(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file to be kept, on file systems of all kinds."""
    path = tmp_path / "source"
    path.write_text("whole")
    link, replace = os.link, Path.replace

    def refuse(error: int, path: object) -> None:
        raise OSError(error, os.strerror(error), str(path))

    if request.param == "no links":
        monkeypatch.setattr(os, "link", lambda source, _: refuse(errno.EPERM, source))
    if request.param == "another file system":

        def link_within(one: Path, two: Path) -> None:
            refuse(errno.EXDEV, one) if one == path else link(one, two)

        def replace_within(one: Path, two: Path) -> Path:
            return replace(one, two) if one != path else refuse(errno.EXDEV, one) or two

        monkeypatch.setattr(os, "link", link_within)
        monkeypatch.setattr(Path, "replace", replace_within)
    return path


def there(directory: Path) -> dict[str, str]:
    """What lies in a directory."""
    return {path.name: path.read_text() for path in directory.iterdir()}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "there"
    path.mkdir()
    return path


def test_a_file_is_kept_under_its_name(source: Path, directory: Path) -> None:
    source.chmod(0o600)
    target = directory / "a.pickle"
    assert keep_file(source, target, force=False) == target
    assert there(directory) == {"a.pickle": "whole"}
    mask = os.umask(0)
    os.umask(mask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_name_that_is_taken_is_left_alone(source: Path, directory: Path) -> None:
    target = directory / "a.pickle"
    target.write_text("mine")
    (directory / "a-2.pickle").symlink_to("nowhere")
    assert keep_file(source, target, force=False) == directory / "a-3.pickle"
    (directory / "a-2.pickle").unlink()
    assert there(directory) == {"a.pickle": "mine", "a-3.pickle": "whole"}


def test_with_force_the_file_that_a_link_names_is_overwritten(
    source: Path, directory: Path
) -> None:
    (directory / "real").write_text("old")
    (directory / "link").symlink_to("real")
    assert keep_file(source, directory / "link", force=True) == directory / "link"
    assert there(directory) == {"real": "whole", "link": "whole"}
    assert (directory / "link").is_symlink()


def test_where_nothing_can_be_written_nothing_is_left(source: Path, directory: Path) -> None:
    with pytest.raises(NotWrittenError, match="No such file or directory") as raised:
        keep_file(source, directory / "none" / "a", force=False)
    assert raised.value.filename == str(directory / "none" / "a")
    assert there(directory) == {} and source.read_text() == "whole"


def test_threads_that_want_one_name_get_one_each(directory: Path) -> None:
    written: list[Path] = []

    def write(number: int) -> None:
        written.append(write_text(str(number), directory / "a.json", force=False))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(written)) == 20
    assert sorted(there(directory).values(), key=int) == [str(number) for number in range(20)]


def test_a_pipe_is_written_into(directory: Path) -> None:
    pipe = directory / "pipe"
    os.mkfifo(pipe)
    read = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert is_stream(pipe) and not is_stream(directory) and not is_stream(directory / "none")
    assert write_text("whole", pipe, force=False) == pipe
    assert os.read(read, 100) == b"whole"
    os.close(read)
    assert is_stream(pipe)
