"""Holds `ullage serve` against a real vLLM server, and writes docs/results/serve.md.

    python -m benchmarks.serving.real --python VENV/bin/python           # all servers
    python -m benchmarks.serving.real --python VENV/bin/python --server llama
    python -m benchmarks.serving.real                                    # only writes the page

The interpreter has the vLLM that was recorded, 0.26.0. Results of each server are in phantom.json.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any, Final

from benchmarks.serving.phantom_loops import run_on_phantom
from benchmarks.serving.phantom_starts import start_twice
from benchmarks.serving.real.page import PHANTOM, SERVERS, write_page
from ullage.facts.families.builtin import find_model
from ullage.operate.serve.host_time import MEASURED, NO_HOST_TIME
from ullage.operate.serve.traffic import load_traffic

GPU: Final = "h100-80gb"
ARCHITECTURE: Final = "LlamaForCausalLM"


def run_server(python: str, server: dict[str, Any]) -> dict[str, Any]:
    """The loads of a server, with the host's time and without."""
    config = {"architectures": [ARCHITECTURE], **find_model(server["model"]).config.fields}
    loops = [
        {**load, "users": load_traffic(load["traffic"]).num_users or 0, "host": host}
        for host in (MEASURED, NO_HOST_TIME)
        for load in server["loads"]
    ]
    result = run_on_phantom(python, GPU, config, server["flags"], loops, MEASURED)
    count = len(server["loads"])
    if server.get("is_later_start"):
        command = ["vllm", "serve", server["model"], *server["flags"]]
        _, later = start_twice(command, gpu=GPU, python=python)
        result["engine"] = asdict(later)
    return {**result, "rows": result["rows"][:count], "without_host": result["rows"][count:]}


def main() -> None:
    """Runs the servers, and writes the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", help="of an environment with vLLM")
    parser.add_argument("--server", action="append")
    args = parser.parse_args()
    results = json.loads(PHANTOM.read_text(encoding="utf-8")) if PHANTOM.exists() else {}
    for server in json.loads(SERVERS.read_text(encoding="utf-8")):
        if args.python and server["name"] in (args.server or [server["name"]]):
            results[server["name"]] = run_server(args.python, server)
            PHANTOM.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    write_page(results)


if __name__ == "__main__":
    main()
