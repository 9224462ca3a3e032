"""The JSON form of a sample, `ullage.watch/1`: one object, in a recording one line.

text = sample_to_line(sample)
sample_from_line(text) == sample
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ullage.ground.parsing import parse_json, show_value
from ullage.ground.protocol.plain import document_of, restore
from ullage.operate.watch.sample import Sample


def sample_to_line(sample: Sample, more: Mapping[str, Any] | None = None) -> str:
    """The document in one line, without a line break at its end.

    Args:
        sample: what is written.
        more: further keys, and values of JSON.
    """
    document = {**document_of(sample), **(more or {})}
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def sample_from_line(line: str | bytes) -> Sample:
    """The sample of one line.

    Raises:
        ValueError: it is not a sample: not JSON, another schema, a field that is missing or wrong.
    """
    document = parse_json(line)
    schema = document.get("schema") if isinstance(document, dict) else document
    if schema != Sample.SCHEMA:
        raise ValueError(f"its schema is {show_value(schema)}, expected {Sample.SCHEMA!r}")
    return restore(Sample, document, "sample")
