"""Writes files completely or not at all, and never replaces another file by accident.

A file is first written under a temporary name in the same directory and then linked to its name.
The link fails if the name is in use, so several processes that want one name get different ones.

    written = keep_file(source, Path("run.pickle"), force=False)     # run.pickle, or run-2.pickle
"""

from __future__ import annotations

import contextlib
import errno
import grp
import itertools
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ullage.ground.errors import SpecError

# The limit of Linux's file systems.
MAX_NAME_BYTES = 255
_MAX_PATH_BYTES = 4095
_MAX_PREFIX_BYTES = 100
_SHOWN_CHARS = 40
_HAS_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class NotWrittenError(OSError):
    """A file could not be written; `filename` is the name that the caller gave."""


@contextlib.contextmanager
def _naming(target: Path) -> Iterator[None]:
    """Adds the file's name to errors, because the error of a full disk has none."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise NotWrittenError(error.errno, why, str(target)) from None


def check_writable(path: Path, *, force: bool) -> None:
    """Raises SpecError if a file cannot be written, so that a run does not fail at its end."""
    if "\0" in str(path):
        raise SpecError(f"{str(path)!r} holds the character NUL, which no name of a file has")
    if str(path) == "-":
        raise SpecError("'-' is not the name of a file; name /dev/stdout for a pipe")
    _check_length(path)
    if is_directory(path):
        raise SpecError(f"{str(path)!r} is a directory; give the name of a file")
    if is_stream(path):
        return
    if os.path.lexists(path) and not force:
        raise SpecError(f"{str(path)!r} exists; give another name, or --force to overwrite it")
    if not path.parent.is_dir():
        raise SpecError(
            f"there is no directory {str(path.parent)!r} to write {path.name!r} into; make it first"
        )
    if not os.access(path.parent, os.W_OK):
        raise SpecError(
            f"{str(path.parent)!r} cannot be written to; name another place for {path.name!r}"
        )


def _check_length(path: Path) -> None:
    """Raises SpecError if the name of a file, or of a directory in its path, is too long."""
    for name in path.parts:
        num_bytes = len(os.fsencode(name))
        if num_bytes > MAX_NAME_BYTES:
            raise SpecError(
                f"the name {name[:_SHOWN_CHARS]!r}... has {num_bytes} bytes; a file system takes "
                f"up to {MAX_NAME_BYTES}: give a shorter name"
            )
    if len(os.fsencode(path.absolute())) > _MAX_PATH_BYTES:
        raise SpecError(
            f"the path of {path.name!r} has more than {_MAX_PATH_BYTES} bytes; give a shorter one"
        )


def is_directory(path: Path) -> bool:
    """True if the directory exists; False for an invalid name."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def is_file(path: Path) -> bool:
    """True if the file exists; False for an invalid name."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def keep_file(source: Path, target: Path, *, force: bool) -> Path:
    """Moves a file to `target`; without `force`, to the next free name if that is in use.

    Returns the new path.

    Raises:
        NotWrittenError: it cannot be written there; no partial file is left.
    """
    with _naming(target):
        if is_stream(target):
            with source.open("rb") as read, target.open("wb") as written:
                shutil.copyfileobj(read, written)
            return target
        source.chmod(file_mode(target.parent))
        try:
            return _publish(source, target, force=force)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        with _beside(target) as aside:
            shutil.copyfile(source, aside)
            return _publish(aside, target, force=force)


def file_mode(directory: Path) -> int:
    """The mode of a new file: its owner's alone where others may write beside it."""
    return 0o600 if may_others_write(directory.stat()) else 0o666 & ~_umask()


def make_directory(path: Path) -> None:
    """Makes a directory, and those above it; its owner's alone where others may write beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700 if may_others_write(path.parent.stat()) else 0o777, exist_ok=True)


def write_text(text: str, target: Path, *, force: bool) -> Path:
    """Writes a text to a new file like `keep_file`, with the same errors."""
    # A lone surrogate, as in a name that is not UTF-8, must not prevent the writing.
    content = text.encode(errors="backslashreplace")
    return write_file(lambda path: path.write_bytes(content), target, force=force)


def write_file(write: Callable[[Path], object], target: Path, *, force: bool) -> Path:
    """Calls `write` with the path of an empty file to fill, and moves the file like `keep_file`,
    with the same errors.
    """
    with _naming(target):
        if is_stream(target):
            write(target)
            return target
        with _beside(target) as aside:
            write(aside)
            return _publish(aside, target, force=force)


def is_stream(path: Path) -> bool:
    """True if this is a device or a pipe, which must be written to directly."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Yields an empty file in the target's directory, and removes it afterwards."""
    number, name = tempfile.mkstemp(
        prefix=f".{_cut(target.name, _MAX_PREFIX_BYTES)}-", dir=target.parent
    )
    aside = Path(name)
    try:
        os.fchmod(number, file_mode(target.parent))
        os.close(number)
        yield aside
    finally:
        aside.unlink(missing_ok=True)


def _publish(source: Path, target: Path, *, force: bool) -> Path:
    """Moves a file to its name within one file system."""
    if force:
        source.replace(target.resolve())  # replaces the target of a link, not the link
        return target
    for path in _names(target):
        try:
            _name(source, path)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))


def _names(target: Path) -> Iterator[Path]:
    """x.pickle, x-2.pickle, x-3.pickle, ..."""
    yield target
    for number in itertools.count(2):
        end = f"-{number}{target.suffix}"
        yield target.with_name(_cut(target.stem, MAX_NAME_BYTES - len(os.fsencode(end))) + end)


def _name(source: Path, path: Path) -> None:
    try:
        os.link(source, path)
    except OSError as error:
        if error.errno not in _HAS_NO_LINKS:
            raise
        # On a file system without links, an empty file reserves the name first.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        source.replace(path)
        return
    source.unlink()


def _cut(name: str, num_bytes: int) -> str:
    """The longest beginning of a name that fits into `num_bytes`."""
    return os.fsencode(name)[:num_bytes].decode(errors="ignore")


def may_others_write(status: os.stat_result) -> bool:
    """True if others than its owner may write to a file or directory, by its modes."""
    mode = status.st_mode
    is_of_group = mode & stat.S_IWGRP and not _is_own_group(status.st_gid, status.st_uid)
    return bool(mode & stat.S_IWOTH or is_of_group)


def user_name(user: int) -> str:
    """The name of a user, or its number."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _is_own_group(group: int, user: int) -> bool:
    """True if only the user is in a group, as by the custom of a group for each user."""
    try:
        name, _, _, members = grp.getgrgid(group)
    except KeyError:
        name, members = "", []
    is_named_alike = group in (0, user) or name == user_name(user)
    return is_named_alike and set(members) <= {user_name(user), "root"}


def _umask() -> int:
    """The process's umask; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
