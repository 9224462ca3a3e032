"""`ullage scrub`: removes private names from a snapshot."""

from __future__ import annotations

import getpass
import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

import click

from ullage.cli.main import say
from ullage.cli.options.command import command
from ullage.cli.output import UNWRITABLE, Output
from ullage.files import check_writable, is_stream, keep_file
from ullage.protocol.options.scrub import ScrubOptions

# Names that identify nobody.
_NOBODY = {"root", "localhost"}
_MIN_NAME = 3
_KEY_BYTES = 16


@command(outputs=("force",))
def scrub_command(options: ScrubOptions, output: Output) -> int | None:
    """Remove paths and names from a memory snapshot before you share it.

    \b
    ullage scrub snapshot.pickle -o shared.pickle

    Paths become relative to their package, or their directories become hashes. Names of users and
    of this machine, addresses, environment variables in free text and command lines are removed.
    Sizes, times and names of functions and modules stay. PyTorch's viewer opens the result. Review
    it before you share it: no rule finds everything.
    """
    from ullage.trace.scrubbing.scrub import scrub_snapshot

    path = options.output
    check_writable(path, force=output.force)
    try:
        with tempfile.TemporaryDirectory(dir=_beside(path), prefix=".ullage-") as aside:
            written = Path(aside) / "scrubbed"
            with written.open("wb") as target:
                key = options.key
                hidden = os.urandom(_KEY_BYTES) if key is None else key.encode()
                done = scrub_snapshot(
                    options.file, target, key=hidden, words=[*options.words, *_own_names()]
                )
            final = keep_file(written, path, force=output.force)
    except OSError as error:
        say(f"ullage: {str(path)!r} could not be written: {error.strerror}", is_aside=True)
        return UNWRITABLE
    click.echo(
        f"{done.num_relative} paths made relative, {done.num_hashed} hashed, "
        f"{done.num_cleaned} other texts cleaned, {done.num_removed} removed",
        err=True,
    )
    say(f"Wrote {final}", is_aside=True)
    return None


def _beside(output: Path) -> Path | None:
    """The directory to prepare a file in; None, the one for temporary files, for a stream."""
    return None if is_stream(output) else output.parent


def _own_names() -> list[str]:
    """The names of this machine and its user, where they are known."""
    names = [socket.gethostname()]
    with suppress(KeyError, OSError):
        names.append(getpass.getuser())
    return [name for name in names if len(name) >= _MIN_NAME and name not in _NOBODY]
