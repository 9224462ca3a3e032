"""Writes the requests of all loads of servers.json out, for a machine without ullage.

    python -m benchmarks.serving.real.plan plan.json

A load with users has "users", "requests", "prompt" and "output"; another one has lists,
"arrival_s", "prompts" and "outputs".
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

from ullage.operate.serve.traffic import load_traffic

SERVERS: Final = Path(__file__).resolve().parent / "servers.json"


def requests_of(load: dict[str, str]) -> dict[str, Any]:
    """A load, written out."""
    traffic = load_traffic(load["traffic"])
    prompts, outputs = traffic.prompt_tokens.tolist(), traffic.output_tokens.tolist()
    if traffic.num_users is not None:
        return {
            "name": load["name"], "users": traffic.num_users, "requests": len(traffic),
            "prompt": prompts[0], "output": outputs[0],
        }  # fmt: skip
    return {
        "name": load["name"], "arrival_s": traffic.arrival_s.tolist(), "prompts": prompts,
        "outputs": outputs,
    }  # fmt: skip


def main() -> None:
    """Writes the plan."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan", type=Path)
    args = parser.parse_args()
    servers = json.loads(SERVERS.read_text(encoding="utf-8"))
    for server in servers:
        server["loads"] = [requests_of(load) for load in server["loads"]]
    args.plan.write_text(json.dumps(servers), encoding="utf-8")


if __name__ == "__main__":
    main()
