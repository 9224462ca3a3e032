"""Traffic from its text on the command line: a file, or a generator."""

from __future__ import annotations

from pathlib import Path

from ullage.ground.errors import SpecError
from ullage.operate.serve.traffic.readers import read_traffic
from ullage.operate.serve.traffic.spec import KINDS, is_generator, parse_generators
from ullage.operate.serve.traffic.traffic import Traffic


def load_traffic(text: str) -> Traffic:
    """Reads the file of that name, or generates what the text says.

    Raises:
        SpecError: it is neither, the file has no requests, or one of its rows is malformed.
    """
    if is_generator(text):
        return parse_generators(text)
    path = Path(text)
    if not path.is_file():
        raise SpecError(
            f"{text!r} is neither a file nor a generator; expected a trace (.csv, .jsonl) or "
            f"KIND:KEY=VALUE,... with KIND one of {', '.join(KINDS)}"
        )
    return read_traffic(path)
