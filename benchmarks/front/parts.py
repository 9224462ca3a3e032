"""Where the front's processor time goes: samples of the function that runs, by part.

with front_in_parts(folder, port) as parts:
    ...                     # requests
parts["client"]             # a share of all samples, once the front has ended
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from benchmarks.front.processes import program

PARTS = {
    "server": ("/uvicorn/", "/doors/protocol", "/doors/refusal", "/starlette/"),
    "head and keys": ("/proxy/head", "/doors/access"),
    "parse and count": ("/proxy/order", "/proxy/fields", "/proxy/prompt", "/proxy/tokens",
                        "/ullage/parsing", "/json/"),
    "admission": ("/front/policy/", "/proxy/board"),
    "client": ("/proxy/upstream",),
    "relay": ("/proxy/app", "/proxy/relay"),
    "event loop": ("/asyncio/", "/contextlib"),
    "the rest": ("",),
}  # fmt: skip
INTERVAL_S = 0.0005


@contextlib.contextmanager
def front_in_parts(folder: Path, port: int) -> Iterator[dict[str, float]]:
    """A front that is sampled; at its end the shares are there."""
    result = folder / "parts.json"
    shares: dict[str, float] = {}
    arguments = ["-m", "benchmarks.front.parts", str(folder / "ullage.toml"), str(result)]
    with program(arguments, port):
        yield shares
    counts = json.loads(result.read_text())
    shares.update((part, count / sum(counts.values())) for part, count in counts.items())


def find_part(frame: FrameType | None) -> str:
    """The part of the innermost function that belongs to one."""
    while frame is not None:
        file = frame.f_code.co_filename
        for part, places in PARTS.items():
            if places != ("",) and any(place in file for place in places):
                return part
        frame = frame.f_back
    return "the rest"


def main() -> None:
    """Serves the front of a configuration, and writes the counts of samples at its end."""
    from ullage.cli import main as run_ullage

    counts: Counter[str] = Counter()
    config, result = sys.argv[1:]
    signal.signal(signal.SIGPROF, lambda _, frame: counts.update((find_part(frame),)))
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
    sys.argv = ["ullage", "front", "--config", config]
    try:
        run_ullage()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        Path(result).write_text(json.dumps(counts))


if __name__ == "__main__":
    main()
