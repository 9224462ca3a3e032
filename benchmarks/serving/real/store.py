"""Stores what record.py recorded, small: a table of each server, and the start of its log.

    python -m benchmarks.serving.real.store OUT benchmarks/serving/real/h100-vllm-0.26.0

NAME.npz has columns; moments are seconds since the first request was sent.

    of requests    load (its place in servers.json), number, sent_s, first_s, last_s (NAN: none),
                   added_s (when the engine took it), prompt_tokens, output_tokens
    of schedule    schedule_s (n, 2: begin and end), schedule (n, 7: tokens, requests, prompts,
                   running, waiting, preempted, and the cache in use in hundred-thousandths)
    of update      update_s (n, 2), update_tokens
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

HERE: Final = Path(__file__).resolve().parent
_STARTED: Final = "Application startup complete"
_PATHS: Final = re.compile(r"(?<![\w.])/[\w./-]+/(?=models/|site/|torch_compile_cache)")
_ROUTE: Final = re.compile(r"Route: |Available routes|distributed_init_method")


def store(raw: Path, server: dict[str, Any], target: Path) -> None:
    """One server."""
    requests = json.loads((raw / "requests.json").read_text(encoding="utf-8"))
    steps = [
        json.loads(line)
        for path in raw.glob("steps-*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    begin_s = min(row[2] for row in requests)
    names = [load["name"] for load in server["loads"]]
    added = {row[2]: row[1] for row in steps if row[0] == "add"}
    columns = {
        "load": [names.index(row[0]) for row in requests],
        "number": [row[1] for row in requests],
        "prompt_tokens": [row[5] for row in requests],
        "output_tokens": [row[6] for row in requests],
        "added_s": _since(begin_s, (_added(added, row[7]) for row in requests)),
    }
    for place, name in ((2, "sent_s"), (3, "first_s"), (4, "last_s")):
        columns[name] = _since(begin_s, (row[place] for row in requests))
    schedule = [row for row in steps if row[0] == "schedule"]
    update = [row for row in steps if row[0] == "update" and row[3]]
    np.savez_compressed(
        target / f"{server['name']}.npz",
        **{name: np.array(each) for name, each in columns.items()},
        schedule_s=np.round(np.array([row[1:3] for row in schedule]) - begin_s, 6),
        schedule=np.array([[*row[3:9], round(1e5 * row[9])] for row in schedule], np.int32),
        update_s=np.round(np.array([row[1:3] for row in update]) - begin_s, 6),
        update_tokens=np.array([row[3] for row in update], np.int32),
    )  # fmt: skip
    log = [*_start((raw / "server.log").read_text(encoding="utf-8", errors="replace"))]
    (target / f"{server['name']}.log").write_text("\n".join(log) + "\n", encoding="utf-8")


def _since(begin_s: float, moments: Iterable[float | None]) -> list[float]:
    return [np.nan if moment is None else round(moment - begin_s, 6) for moment in moments]


def _added(added: dict[str, float], request: str) -> float | None:
    """When the engine took a request, which it calls by the server's name of it and more."""
    return next((moment for name, moment in added.items() if name.startswith(request)), None)


def _start(text: str) -> Iterator[str]:
    """The lines of a log until the server takes requests, without bars and folders."""
    for line in text.splitlines():
        if not _ROUTE.search(line) and "it/s" not in line and "?" not in line[-80:]:
            yield _PATHS.sub("", line.rstrip())
        if _STARTED in line:
            return


def main() -> None:
    """Stores each server."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("raw", type=Path)
    parser.add_argument("target", type=Path)
    args = parser.parse_args()
    args.target.mkdir(parents=True, exist_ok=True)
    for server in json.loads((HERE / "servers.json").read_text(encoding="utf-8")):
        store(args.raw / server["name"], server, args.target)


if __name__ == "__main__":
    main()
