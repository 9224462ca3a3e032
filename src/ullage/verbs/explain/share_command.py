"""`ullage explain --share`: removes private names from a snapshot."""

from __future__ import annotations

import getpass
import os
import socket
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from ullage.ground.files import check_writable, is_stream, keep_file
from ullage.verbs.command_line.output import UNWRITABLE
from ullage.verbs.command_line.streams import say

# Names that identify nobody.
_NOBODY = {"root", "localhost"}
_MIN_NAME = 3
_KEY_BYTES = 16


def write_shared(
    source: Path, path: Path, hidden: Sequence[str], key: str | None, *, force: bool
) -> int:
    """Writes a copy of a snapshot without paths and names; returns what to exit with.

    Args:
        source: the snapshot.
        path: of the copy.
        hidden: other texts to remove.
        key: what directories are hashed with; None: a random one.
        force: True: a file that exists is overwritten.
    """
    from ullage.log.scrubbing.scrub import scrub_snapshot

    check_writable(path, force=force)
    secret = os.urandom(_KEY_BYTES) if key is None else key.encode()
    try:
        beside = None if is_stream(path) else path.parent
        with tempfile.TemporaryDirectory(dir=beside, prefix=".ullage-") as aside:
            written = Path(aside) / "scrubbed"
            with written.open("wb") as target:
                done = scrub_snapshot(source, target, key=secret, words=[*hidden, *_own_names()])
            final = keep_file(written, path, force=force)
    except OSError as error:
        say(f"ullage: {str(path)!r} could not be written: {error.strerror}", is_aside=True)
        return UNWRITABLE
    click.echo(
        f"{done.num_relative} paths made relative, {done.num_hashed} hashed, "
        f"{done.num_cleaned} other texts cleaned, {done.num_removed} removed",
        err=True,
    )
    say(f"Wrote {final}", is_aside=True)
    return 0


def _own_names() -> list[str]:
    """The names of this machine and its user, where they are known."""
    names = [socket.gethostname()]
    with suppress(KeyError, OSError):
        names.append(getpass.getuser())
    return [name for name in names if len(name) >= _MIN_NAME and name not in _NOBODY]
