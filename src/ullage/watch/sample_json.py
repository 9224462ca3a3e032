"""The JSON form of a sample, `ullage.watch/1`: one object, in a recording one line.

text = sample_to_line(sample)
sample_from_line(text) == sample
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from ullage.parsing import parse_json, show_value
from ullage.protocol.plain import plain, restore
from ullage.watch.sample import Sample

SCHEMA: Final = "ullage.watch/1"


def sample_to_document(sample: Sample) -> dict[str, Any]:
    """The sample as a JSON object: its fields by their names, unknown ones null."""
    return {"schema": SCHEMA, **plain(sample)}


def sample_to_line(sample: Sample, more: Mapping[str, Any] | None = None) -> str:
    """The document in one line, without a line break at its end.

    Args:
        sample: what is written.
        more: further keys, and values of JSON.
    """
    document = {**sample_to_document(sample), **(more or {})}
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def sample_from_line(line: str | bytes) -> Sample:
    """The sample of one line.

    Raises:
        ValueError: it is not a sample: not JSON, another schema, a field that is missing or wrong.
    """
    document = parse_json(line)
    schema = document.get("schema") if isinstance(document, dict) else document
    if schema != SCHEMA:
        raise ValueError(f"its schema is {show_value(schema)}, expected {SCHEMA!r}")
    return restore(Sample, document, "sample")
