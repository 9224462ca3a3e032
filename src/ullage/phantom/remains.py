"""What the processes of a run left in its directory: records, snapshots, and the marks of those
that used a device and left nothing else.

    remains = collect(run_dir, pid, Path("run.pickle"), force=False)
    remains.records, remains.unrecorded
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.files import keep_file

if TYPE_CHECKING:
    from ullage.trace.model import Record


@dataclass(frozen=True, slots=True)
class Remains:
    """What a run left.

    Attributes:
        records: of each process that wrote one, the started process's first, with the path that
            its snapshot is kept at.
        unrecorded: the processes that used a device and wrote no record, with the reason where
            they could still give one.
        warnings: what could not be kept.
    """

    records: tuple[tuple[Record, str | None], ...]
    unrecorded: tuple[tuple[int, str], ...]
    warnings: tuple[str, ...]


def collect(run_dir: Path, pid: int, kept: Path | None, *, force: bool) -> Remains:
    """Reads what the process `pid` and its children left, and moves the snapshots to where they are
    kept: the first at `kept`, the others beside it.

    Raises:
        SnapshotError: a record cannot be read.
    """
    from ullage.trace.reader import read_record

    read = [(read_record(path), path) for path in run_dir.glob("*.record")]
    read.sort(key=lambda pair: pair[0].order(pid))
    excuses = {int(path.stem): _excuse(path) for path in run_dir.glob("*.begun")}
    records: list[tuple[Record, str | None]] = []
    warnings: list[str] = []
    taken: set[Path] = set()
    for record, path in read:
        place = None
        if kept is not None:
            target = kept if not records else kept.with_stem(kept.stem + _which(record))
            try:
                # Of this run, one snapshot does not overwrite another.
                place = keep_file(
                    path.with_suffix(".snapshot.pickle"),
                    target,
                    force=force and target not in taken,
                )
                taken.add(target)
            except OSError as error:
                why = excuses.get(record.pid) or error.strerror or str(error)
                warnings.append(f"the snapshot {str(target)!r} could not be written: {why}")
        records.append((record, None if place is None else str(place)))
    recorded = {record.pid for record, _ in records}
    unrecorded = tuple(pair for pair in sorted(excuses.items()) if pair[0] not in recorded)
    return Remains(tuple(records), unrecorded, tuple(warnings))


def _which(record: Record) -> str:
    return f"-{record.pid}" if record.rank is None else f"-rank{record.rank}"


def _excuse(path: Path) -> str:
    """Why a process wrote no record, if it got to say so."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
