"""Holds the forecast of preemptions against the engine, and writes docs/results/estimates.md.

    python -m benchmarks.serving.forecast --python VENV/bin/python              # all servers
    python -m benchmarks.serving.forecast --python VENV/bin/python --server NAME
    python -m benchmarks.serving.forecast                                       # only the page

Each server starts once on the phantom, with so small a cache that it is the bottleneck, and serves
several kinds of traffic. Of each the forecast is made from the configuration and the bytes of the
cache alone. The interpreter has vLLM 0.32.0.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.provenance import made_by, torch_version
from benchmarks.results import publish
from ullage.facts.families.architecture import read_model
from ullage.facts.families.builtin import find_model
from ullage.facts.families.config import Config
from ullage.facts.gpus import find_gpu
from ullage.operate.serve.forecast.forecast import Forecast, forecast_traffic
from ullage.operate.serve.forecast.simulation import Simulated
from ullage.operate.serve.traffic import load_traffic
from ullage.players.eager.serving.engines import vllm
from ullage.players.eager.serving.serving_plan import ServingPlan

HERE: Final = Path(__file__).resolve().parent
RESULTS: Final = HERE / "forecast.json"
MOST_MODEL_LEN: Final = 8192
_ULLAGE: Final = (sys.executable, "-c", "from ullage.cli import main; main()")
SERVERS: Final[dict[str, dict[str, Any]]] = {
    "llama-h100": {
        "model": "llama-3.1-8b", "architecture": "LlamaForCausalLM", "gpu": "h100-80gb",
        "blocks": 2048,
        "traffics": [
            "poisson:rate=10,prompt=900,output=300,spread=0.5,duration=2m",
            "azure-conv:rate=30,duration=2m,seed=3",
            "sessions:rate=1,prompt=600,output=250,turns=5,think=10,system=512,duration=3m",
            "bursts:rate=8,prompt=1200,output=400,spread=0.4,duration=3m",
            "closed:users=96,requests=500,prompt=700,output=600,spread=0.5",
            "azure-conv:rate=10,duration=2m+documents:rate=0.3,prompt=6000,output=300,duration=2m",
        ],
    },
    "qwen-l40s": {
        "model": "qwen3-8b", "architecture": "Qwen3ForCausalLM", "gpu": "l40s", "blocks": 2730,
        "traffics": [
            "poisson:rate=4,prompt=1500,output=250,spread=0.7,duration=3m,seed=11",
            "azure-code:rate=8,duration=2m,seed=5",
            "azure-conv:rate=12,duration=2m,seed=9",
            "sessions:rate=0.5,prompt=500,output=400,turns=6,think=5,duration=3m,seed=2",
            "bursts:rate=3,prompt=800,output=700,spread=0.6,duration=3m,seed=4",
            "closed:users=64,requests=300,prompt=1200,output=900,spread=0.6,seed=8",
        ],
    },
}  # fmt: skip


def run_server(name: str, python: str) -> dict[str, Any]:
    """The engine's figures of a server's traffic."""
    server = SERVERS[name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        fields = find_model(server["model"]).config.fields
        config = {"architectures": [server["architecture"]], **fields}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        task = {
            "arguments": [
                place, "--max-model-len", str(MOST_MODEL_LEN), "--enforce-eager",
                "--num-gpu-blocks-override", str(server["blocks"]),
            ],
            "config": str(folder / "config.json"), "gpu": server["gpu"],
            "traffics": server["traffics"],
        }  # fmt: skip
        (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
        (folder / "ullage.toml").write_text("[run]\nvalues = false\n", encoding="utf-8")
        subprocess.run(
            [
                *_ULLAGE, "run", "--gpu", server["gpu"], "--python", python, "--clock", "virtual",
                "--snapshot", str(folder / "run.pickle"), "--",
                str(HERE / "many_traffics.py"), str(folder / "task.json"),
                str(folder / "result.json"),
            ],
            check=False, cwd=folder,
        )  # fmt: skip
        result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    result["torch"] = torch_version(Path(python))
    return result


def block_bytes(config: Config) -> int:
    """Of one block of a model whose layers all see everything."""
    settings = vllm.Settings(MOST_MODEL_LEN, 8192)
    return vllm.lay_out(read_model(config).layers, settings).block_bytes


def forecast_row(name: str, engine: dict[str, Any], text: str) -> tuple[Forecast, float]:
    """The forecast of one traffic, and the seconds that it took."""
    server = SERVERS[name]
    plan = ServingPlan(
        gpu=find_gpu(server["gpu"]), context=MOST_MODEL_LEN, has_graphs=False,
    )  # fmt: skip
    config = find_model(server["model"]).config
    cache_bytes = engine["num_blocks"] * block_bytes(config)
    begin_s = time.monotonic()
    forecast = forecast_traffic(config, plan, load_traffic(text), cache_bytes)
    return forecast, time.monotonic() - begin_s


def page(results: dict[str, Any]) -> str:
    """The page."""
    torch = next(iter(results.values()))["torch"]
    parts = [
        "# Forecasts of preemptions, beside the engine",
        made_by("benchmarks.serving.forecast", torch=torch),
        INTRODUCTION,
    ]
    errors, seconds, latencies = [], [], []
    for name, result in results.items():
        server, engine = SERVERS[name], result["engine"]
        rows = [HEADS, "|---|--:|--:|--:|--:|--:|--:|--:|--:|"]
        for row in result["rows"]:
            forecast, took_s = forecast_row(name, engine, row["traffic"])
            seconds.append(took_s)
            outcome = forecast.simulated
            latencies.append(latency_row(row, outcome))
            error = None
            if row["num_preemptions"]:
                error = forecast.num_preemptions / row["num_preemptions"] - 1
                errors.append((row["traffic"], error))
            shown = "-" if error is None else f"{100 * error:+.0f} %"
            preempted = int((outcome.num_preemptions > 0).sum())
            rows.append(
                f"| `{row['traffic']}` | {row['num_requests']:,} | {row['num_preemptions']:,} | "
                f"{forecast.num_preemptions:,} | {shown} | {row['num_preempted']:,} | "
                f"{preempted:,} | {row['duration_s']:.0f} s | {outcome.duration_s:.0f} s |"
            )
        parts.append(
            f"## {server['model']} on {server['gpu']}\n\n"
            f"`--max-model-len {MOST_MODEL_LEN} --enforce-eager --num-gpu-blocks-override "
            f"{server['blocks']}`: {engine['kv_cache_tokens']:,} tokens.\n\n" + "\n".join(rows)
        )
    parts.insert(3, summary(errors, seconds))
    parts.append(f"{LATENCIES}\n\n{LATENCY_HEADS}\n|---|{'--:|' * 8}\n" + "\n".join(latencies))
    return "\n\n".join(parts) + "\n"


HEADS: Final = (
    "| traffic | requests | preemptions | forecast | error | requests preempted | forecast | "
    "to the last answer | forecast |"
)
INTRODUCTION: Final = """The engine is vLLM on the phantom (`ullage serve`), whose own scheduler \
decides what is preempted. The forecast (`ullage capacity --traffic`) counts blocks: it has the \
configuration, the bytes of the cache, the GPU's kernel tables, and the times and lengths of the \
requests; no engine runs. The cache is the bottleneck in all of them. No figure was fitted; a \
mistake was found with the traffic of the first server, before the second's was looked at."""


def latency_row(row: dict[str, Any], outcome: Simulated) -> str:
    """Times to the first and the last token, of the engine and of the forecast."""
    cells = []
    columns = outcome.first_token_s - outcome.arrival_s, outcome.end_s - outcome.arrival_s
    for name, column in zip(("ttft_s", "e2e_s"), columns, strict=True):
        for point in (50, 99):
            likely = float(np.percentile(column[np.isfinite(column)], point))
            cells += [f"{row[name][f'p{point}']:.2f}", f"{likely:.2f}"]
    return f"| `{row['traffic']}` | " + " | ".join(cells) + " |"


LATENCIES: Final = """## Latencies

Seconds to the first and to the last token, of the engine in virtual time and of the forecast."""
LATENCY_HEADS: Final = (
    "| traffic | first, p50 | forecast | first, p99 | forecast | last, p50 | forecast | "
    "last, p99 | forecast |"
)


def summary(errors: list[tuple[str, float]], seconds: list[float]) -> str:
    """What came of it, in a paragraph."""
    sizes = sorted(abs(error) for _, error in errors)
    within = sum(size <= 0.2 for size in sizes)
    text, worst = max(errors, key=lambda pair: abs(pair[1]))
    return (
        f"Of {len(errors)} kinds of traffic with preemptions, {within} are within 20 %; the median "
        f"error is {100 * statistics.median(sizes):.0f} %, the largest {100 * worst:+.0f} % "
        f"(`{text}`). A forecast took {max(seconds):.1f} s at most, on two cores that others used "
        "as well."
    )


def main() -> None:
    """Runs what was asked for, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", help="interpreter with vLLM; without it only the page")
    parser.add_argument("--server", choices=SERVERS, action="append")
    words = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name in (words.server or SERVERS) if words.python else ():
        results[name] = run_server(name, words.python)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if results:
        publish("serve-forecast", page(results))


if __name__ == "__main__":
    main()
