"""A record as tables: its blocks, what the program was doing at each event, and who owned what.

log = read_log(record)
log.blocks.size_bytes[log.blocks.is_live(event)], log.course.phase, log.owners.category
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ullage.explain.moments.course import Course, read_course
from ullage.explain.owners.modules import attribute_modules
from ullage.explain.owners.owners import Owners
from ullage.explain.owners.ownership import attribute_record
from ullage.log.blocks import Blocks, read_blocks
from ullage.log.model import Record


@dataclass(frozen=True, slots=True)
class Log:
    """The tables of a record; `owners` has a row for each of the `blocks` of all devices."""

    record: Record
    blocks: Blocks
    course: Course
    owners: Owners


def read_log(record: Record) -> Log:
    """Reads a record into its tables.

    Raises:
        SnapshotError: a block has no address, or one beyond 56 bits.
    """
    blocks, course = read_blocks(record), read_course(record)
    categories = attribute_record(record, blocks, course)
    modules = attribute_modules(record, blocks)
    precision = record.events.precision
    if precision is not None:
        precision = np.append(precision, np.uint8(0))[blocks.birth]
    owners = Owners(categories, is_known=True, modules=modules, precision=precision)
    return Log(record, blocks, course, owners)
