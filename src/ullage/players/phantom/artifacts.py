"""The files that the processes of a run left in its directory: records, snapshots, and the marks of
those that used a device and left nothing else, as one that was killed.

    artifacts = collect(run_dir, pid, Path("run.pickle"), force=False)
    artifacts.records, artifacts.unrecorded
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.ground.files import keep_file
from ullage.players.inside.process.levels import Levels, find_marks, read_levels

if TYPE_CHECKING:
    from ullage.log.model import Record


@dataclass(frozen=True, slots=True)
class Artifacts:
    """The files of a run.

    Attributes:
        records: of each process that wrote one, the started process's first, with the path that
            its snapshot is kept at.
        unrecorded: the processes that used a device and wrote no record, with the reason where
            they could still give one.
        levels: what their marks say of them, by the same numbers.
        warnings: what could not be kept.
    """

    records: tuple[tuple[Record, str | None], ...]
    unrecorded: tuple[tuple[int, str], ...]
    levels: Mapping[int, Levels]
    warnings: tuple[str, ...]


def collect(run_dir: Path, pid: int, snapshot: Path | None, *, force: bool) -> Artifacts:
    """Reads what the process `pid` and its children left, and moves the snapshots to where they are
    kept: the first at `snapshot`, the others next to it.

    Raises:
        SnapshotError: a record cannot be read.
    """
    from ullage.log.reader import read_record

    read = [(read_record(path), path) for path in run_dir.glob("*.record")]
    read.sort(key=lambda pair: pair[0].order(pid))
    levels = {number: read_levels(path) for number, path in find_marks(run_dir).items()}
    records: list[tuple[Record, str | None]] = []
    warnings: list[str] = []
    taken: set[Path] = set()
    for record, path in read:
        place = None
        if snapshot is not None:
            target = snapshot if not records else snapshot.with_stem(snapshot.stem + _which(record))
            try:
                # Of this run, one snapshot does not overwrite another.
                place = keep_file(
                    path.with_suffix(".snapshot.pickle"),
                    target,
                    force=force and target not in taken,
                )
                taken.add(target)
            except OSError as error:
                level = levels.get(record.pid)
                why = (level and level.excuse) or error.strerror or str(error)
                warnings.append(f"the snapshot {str(target)!r} could not be written: {why}")
        records.append((record, None if place is None else str(place)))
    for record, _ in records:
        levels.pop(record.pid, None)
    unrecorded = tuple((number, level.excuse) for number, level in sorted(levels.items()))
    return Artifacts(tuple(records), unrecorded, levels, tuple(warnings))


def _which(record: Record) -> str:
    return f"-{record.pid}" if record.rank is None else f"-rank{record.rank}"
