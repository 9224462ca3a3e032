"""The JSON form of a sample, `ullage.watch/1`: one object, in a recording one line.

    text = sample_to_line(sample)
    sample_from_line(text) == sample

Ten GPUs at 10 Hz leave a millisecond for each sample. Most of a sample is as it was in the last
one, so the last text of each part is kept, and used again where the part has not changed. That is
bounded by the size of one sample, however long it runs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final

from ullage.parsing import parse_json, show_value
from ullage.watch.plain import plain, restore
from ullage.watch.sample import DeviceSample, Sample

SCHEMA: Final = "ullage.watch/1"

_MAX_FORGOTTEN: Final = 64

# What differs from one sample to the next; the rest changes once a second or never.
_FAST: Final = ("used_bytes", "free_bytes", "gpu_frac", "memory_frac", "power_w")
_SLOW: Final = tuple(
    field.name
    for field in dataclasses.fields(DeviceSample)
    if field.name not in {*_FAST, "processes"}
)
_fast_values = attrgetter(*_FAST)
_slow_values = attrgetter(*_SLOW)
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def sample_to_document(sample: Sample) -> dict[str, Any]:
    """The sample as a JSON object: its fields by their names, unknown ones null."""
    return {"schema": SCHEMA, **plain(sample)}


def sample_to_line(sample: Sample, more: Mapping[str, Any] | None = None) -> str:
    """The document in one line, without a line break at its end.

    Args:
        sample: what is written.
        more: further keys, and values of JSON.
    """
    if len(_texts) > _MAX_FORGOTTEN + 3 * len(sample.devices):
        _texts.clear()  # of another machine, with more GPUs
    devices = ",".join(map(_device_text, range(len(sample.devices)), sample.devices))
    rest = {
        "schema": SCHEMA,
        "time_s": sample.time_s,
        "host": sample.host,
        "driver_version": sample.driver_version,
        **(more or {}),
    }
    return (
        f'{_encode(rest)[:-1]},"devices":[{devices}],"jobs":{_same_text("jobs", sample.jobs)},'
        f'"notes":{_same_text("notes", sample.notes)}}}'
    )


# By the part of a sample: the value and its text. Devices and the tuples of processes, jobs and
# notes are the same objects as long as nothing in them changes.
_texts: dict[tuple[str, int] | str, tuple[object, str]] = {}


def _device_text(position: int, device: DeviceSample) -> str:
    known = _texts.get(("device", position))
    if known is not None and known[0] is device:
        return known[1]
    fast = _encode(dict(zip(_FAST, _fast_values(device), strict=True)))
    processes = _same_text(("processes", position), device.processes)
    text = f'{_slow_text(position, device)},"processes":{processes},{fast[1:]}'
    _texts["device", position] = (device, text)
    return text


def _slow_text(position: int, device: DeviceSample) -> str:
    values = _slow_values(device)
    known = _texts.get(("slow", position))
    # The values are compared without their types, and 1 == 1.0: both are the same number.
    if known is not None and known[0] == values:
        return known[1]
    text = _encode(dict(zip(_SLOW, map(plain, values), strict=True)))[:-1]
    _texts["slow", position] = (values, text)
    return text


def _same_text(part: tuple[str, int] | str, value: object) -> str:
    known = _texts.get(part)
    if known is not None and known[0] is value:
        return known[1]
    text = _encode(plain(value))
    _texts[part] = (value, text)
    return text


def sample_from_line(line: str | bytes) -> Sample:
    """The sample of one line.

    Raises:
        ValueError: it is no sample: not JSON, another schema, a field that is missing or wrong.
    """
    document = parse_json(line)
    schema = document.get("schema") if isinstance(document, dict) else document
    if schema != SCHEMA:
        raise ValueError(f"its schema is {show_value(schema)}, expected {SCHEMA!r}")
    return restore(Sample, document, "sample")
