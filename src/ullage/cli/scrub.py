"""`ullage scrub`: a snapshot that can be shared."""

from __future__ import annotations

import getpass
import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

import click

from ullage.cli import flags
from ullage.cli.main import say
from ullage.cli.output import FILE, UNWRITABLE
from ullage.files import check_writable, is_stream, keep_file

# Names that are nobody's.
_NOBODY = {"root", "localhost"}
_MIN_NAME = 3
_KEY_BYTES = 16


@click.command("scrub")
@click.argument("file", type=FILE)
@click.option("-o", "--output", type=FILE, metavar="FILE", required=True, help="Where to write it.")
@click.option(
    "--word",
    "words",
    multiple=True,
    metavar="TEXT",
    help="Remove this too, such as a project's name (may be given several times).",
)
@click.option(
    "--key",
    metavar="TEXT",
    help="Hash directories with this, so that files to compare agree; anew each time if not given.",
)
@flags.force
def scrub_command(
    file: Path, *, output: Path, words: tuple[str, ...], key: str | None, force: bool
) -> int | None:
    """Remove paths and names from a memory snapshot before it is shared.

    \b
    ullage scrub snapshot.pickle -o shared.pickle

    Paths become relative to their package, or their directories become a few letters; names of
    users, this machine's and yours among them, addresses, environment variables in free texts and
    command lines are removed. Sizes, times and names of functions and modules stay. PyTorch's
    viewer opens the result. Look through it before it leaves the house: no rule knows everything.
    """
    from ullage.trace.scrubbing.scrub import scrub_snapshot

    check_writable(output, force=force)
    try:
        with tempfile.TemporaryDirectory(dir=_beside(output), prefix=".ullage-") as aside:
            written = Path(aside) / "scrubbed"
            with written.open("wb") as target:
                hidden = os.urandom(_KEY_BYTES) if key is None else key.encode()
                done = scrub_snapshot(file, target, key=hidden, words=[*words, *_own_names()])
            kept = keep_file(written, output, force=force)
    except OSError as error:
        say(f"ullage: {str(output)!r} could not be written: {error.strerror}", is_aside=True)
        return UNWRITABLE
    click.echo(
        f"{done.num_relative} paths made relative, {done.num_hashed} hashed, "
        f"{done.num_cleaned} other texts cleaned, {done.num_removed} removed",
        err=True,
    )
    say(f"Wrote {kept}", is_aside=True)
    return None


def _beside(output: Path) -> Path | None:
    """The directory to prepare a file in; None, the one for temporary files, for a stream."""
    return None if is_stream(output) else output.parent


def _own_names() -> list[str]:
    """Who and where this is, as far as it can be told."""
    names = [socket.gethostname()]
    with suppress(KeyError, OSError):
        names.append(getpass.getuser())
    return [name for name in names if len(name) >= _MIN_NAME and name not in _NOBODY]
