"""Any bytes as a snapshot: read, replayed, scrubbed, written as a compact file and read again.

Nothing but SnapshotError may come out. Run by run.py; the first byte of an input says what the rest
is: a pickle, the header of a compact file, or the pickle of values within one.

    python tests/fuzz/read_snapshots.py CORPUS -runs=1000000 -max_len=4096
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import warnings
import zlib
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["ullage.log"]):
    from ullage.ground.errors import SnapshotError
    from ullage.log.compact_format import container
    from ullage.log.compact_format.compact import read_compact, write_compact
    from ullage.log.replay import replay
    from ullage.log.scrubbing.scrub import scrub_snapshot
    from ullage.log.snapshot_reader import read_snapshot

PREFIX = container._PREFIX
SCRATCH = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
INPUT, COMPACT = SCRATCH / "input", SCRATCH / "base.ullage"
DEVICES = 2
# Of the snapshots that can be read, one in so many also goes through all that writes.
WRITTEN_SHARE = 8


def split(content: bytes) -> tuple[bytes, bytes, bytes]:
    """Header, values and columns of a compact file."""
    length = PREFIX.unpack(content[: PREFIX.size])[1]
    header = content[PREFIX.size :][:length]
    rest = content[PREFIX.size + length :]
    num_bytes = json.loads(header)["rest"][0]
    return header, rest[:num_bytes], rest[num_bytes:]


def join(header: bytes, rest: bytes) -> bytes:
    """A compact file whose sums are right."""
    return PREFIX.pack(container.MAGIC, len(header), zlib.crc32(header)) + header + rest


def make_file(kind: int, content: bytes) -> bytes:
    """What the reader gets to read."""
    if kind % 4 < 2:
        return content
    header, values, columns = BASE
    if kind % 4 == 2:
        return join(content, values + columns)
    packed = zlib.compress(content, 1)
    fields = json.loads(header) | {"rest": [len(packed), len(content)]}
    return join(json.dumps(fields).encode(), packed + columns)


def test_one_input(content: bytes) -> None:
    """One input."""
    if not content:
        return
    INPUT.write_bytes(make_file(content[0], content[1:]))
    with contextlib.suppress(SnapshotError):
        snapshot = read_snapshot(INPUT)
        for device in range(DEVICES):
            lives = replay(snapshot, device)
            assert len(lives.blocks) == len(lives.blocks.birth)
        if zlib.crc32(content) % WRITTEN_SHARE:
            return
        write_compact(snapshot, SCRATCH / "written.ullage")
        again = read_compact(SCRATCH / "written.ullage")
        assert again.texts == snapshot.texts
        assert repr(again.record) == repr(snapshot.record)
        scrub_snapshot(INPUT, io.BytesIO(), key=b"")


def main() -> None:
    """Runs until the options of libFuzzer say that it is enough."""
    global BASE
    warnings.simplefilter("error")
    seed = Path(__file__).with_name("seed.pickle")
    seed = Path(os.environ.get("ULLAGE_FUZZ_SEED", seed))
    write_compact(read_snapshot(seed), COMPACT)
    BASE = split(COMPACT.read_bytes())
    atheris.Setup(sys.argv, test_one_input)
    atheris.Fuzz()


BASE: tuple[bytes, bytes, bytes]

if __name__ == "__main__":
    main()
