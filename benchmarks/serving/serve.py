"""Runs `ullage serve` on fixed cases, and writes docs/results/serve.md.

    python -m benchmarks.serving.serve --python VENV/bin/python              # all parts
    python -m benchmarks.serving.serve --python VENV/bin/python --part conv  # one part

    code    an hour of traffic in the shape of Azure's of 2023 (code), with its time on this
    conv    machine, twice: are the documents equal? And of conversations
    curve   traffic at several loads on a GPU with little room for the cache
    loops, loops-experts, loops-fp8
            closed loops that were measured on real servers (published_loops.csv)
    page    only writes the page, from serve.json

The interpreter has vLLM 0.32.0. Each part replaces its entry in serve.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.serving.phantom_loops import ULLAGE, run_on_phantom
from benchmarks.serving.serve_page import write_page
from ullage.facts.families.builtin import find_model
from ullage.operate.serve.host_time import MEASURED

HERE: Final = Path(__file__).resolve().parent
RESULTS: Final = HERE / "serve.json"
LOOPS: Final = HERE / "published_loops.csv"
GPU: Final = "h100-80gb"
MODEL: Final = ("vllm", "serve", "llama-3.1-8b", "--max-model-len", "16384")
HOURS: Final = {"code": "azure-code:duration=1h", "conv": "azure-conv:duration=1h"}
CURVE: Final = ("rtx-4090", "azure-conv:duration=2m", "0.1,0.2,0.3,0.4,0.6,0.8")
SLO: Final = "ttft=1s,tpot=50ms"
ROUNDS: Final = 10
"""Requests of each user of a closed loop that is run as the source's own tool runs it."""


class Server(NamedTuple):
    """A server of published_loops.csv.

    Attributes:
        model: of the rows.
        checkpoint: fields of its config.json beside the model's own.
        arguments: words after `vllm serve MODEL`.
    """

    model: str
    checkpoint: dict[str, Any]
    arguments: tuple[str, ...]


LOOP_ARGUMENTS: Final = (
    "--max-num-seqs", "512", "--no-enable-prefix-caching", "--gpu-memory-utilization", "0.9",
)  # fmt: skip
"""As the source's generator starts vLLM: it sets 512 requests and no prefix cache, and leaves the
tokens of a step. Where nothing is said, these releases take 0.9 of the GPU."""
SYNCHRONOUS: Final = ("--max-model-len", "8192", "--no-async-scheduling", *LOOP_ARGUMENTS)
"""Where nothing is said, 0.12 does not schedule beside the device; later releases do."""
FP8_BLOCKS: Final = {
    "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
    "activation_scheme": "dynamic",
}  # fmt: skip
"""The quantization_config of Qwen3-32B-FP8."""
SERVERS: Final = {
    "loops": Server("qwen3-32b", {"architectures": ["Qwen3ForCausalLM"]}, SYNCHRONOUS),
    "loops-fp8": Server(
        "qwen3-32b-fp8",
        {"architectures": ["Qwen3ForCausalLM"], "quantization_config": FP8_BLOCKS},
        ("--kv-cache-dtype", "fp8", *SYNCHRONOUS),
    ),
    "loops-experts": Server(
        "gpt-oss-120b",
        {"architectures": ["GptOssForCausalLM"]},
        ("--max-model-len", "16384", *LOOP_ARGUMENTS),
    ),
}
BESIDE_TOKENS: Final = 128
"""Of a step with one prompt: a token of each user, of whom there are at most so many."""
PARTS: Final = ("code", "conv", "curve", *SERVERS, "page")


def serve(python: str, gpu: str, traffic: str, *others: str) -> dict[str, Any]:
    """Runs `ullage serve`; its document, and its time on this machine."""
    with tempfile.TemporaryDirectory() as name:
        output = Path(name, "served.json")
        words = [
            *ULLAGE, "serve", "--gpu", gpu, "--traffic", traffic, "--slo", SLO, *others,
            "-o", str(output), "--python", python, "--", *MODEL,
        ]  # fmt: skip
        Path(name, "ullage.toml").write_text('[serve]\nhost_time = "none"\n', encoding="utf-8")
        before, begin_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run(words, check=True, cwd=name)
        wall_s, after = time.monotonic() - begin_s, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        document: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    real = document.pop("real_s")
    return {
        "command": f"ullage {' '.join(words[3:words.index('-o')])} -- {' '.join(MODEL)}",
        "document": document, "real_s": real, "wall_s": wall_s, "cpu_s": cpu_s,
        "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def run_hour(python: str, traffic: str) -> dict[str, Any]:
    """An hour, twice; without its levels and rejected requests."""
    runs = [serve(python, GPU, traffic) for _ in range(2)]
    first, again = runs
    is_equal = first["document"] == again["document"]
    for left_out in ("levels", "rejected"):
        del first["document"][left_out]
    costs = [{key: run[key] for key in ("real_s", "wall_s", "cpu_s", "load")} for run in runs]
    return {**first, "is_equal": is_equal, "runs": costs}


def run_curve(python: str) -> dict[str, Any]:
    """Several loads of one start."""
    gpu, traffic, loads = CURVE
    run = serve(python, gpu, traffic, "--loads", loads)
    for left_out in ("levels", "rejected"):
        del run["document"][left_out]
    return run


def run_loops(python: str, server: Server) -> dict[str, Any]:
    """The published closed loops of a server, on one start of it.

    As the source's own tool measures: all users begin at once, each has ROUNDS requests, and all
    count (its requests to warm up come before, and leave nothing behind). And once more on a start
    for each length of prompts whose steps have room for one prompt, without answers of 8,192
    tokens.
    """
    every = csv.DictReader(LOOPS.open(encoding="utf-8"))
    rows = [row for row in every if row["model"] == server.model]
    loops = [
        {
            **{name: int(row[name]) for name in ("users", "prompt", "output")},
            "traffic": (
                f"closed:users={row['users']},requests={ROUNDS * int(row['users'])},"
                f"prompt={row['prompt']},output={row['output']}"
            ),
        }
        for row in rows
    ]
    fields = find_model(server.model.removesuffix("-fp8")).config.fields
    config, ranks = {**fields, **server.checkpoint}, int(rows[0]["tp"])

    def run(loops: list[dict[str, Any]], *arguments: str) -> dict[str, Any]:
        words = (*server.arguments, *arguments)
        return run_on_phantom(python, GPU, config, words, loops, MEASURED, ranks=ranks)

    result, one_prompt = run(loops), []
    for prompt in sorted({loop["prompt"] for loop in loops}):
        some = [loop for loop in loops if loop["prompt"] == prompt and loop["output"] <= 1024]
        one = run(some, "--max-num-batched-tokens", str(prompt + BESIDE_TOKENS))
        one_prompt += one["rows"]
    return {
        **result, "host": MEASURED._asdict(), "arguments": server.arguments, "rounds": ROUNDS,
        "model": server.model, "one_prompt": one_prompt, "beside_tokens": BESIDE_TOKENS,
    }  # fmt: skip


def main() -> None:
    """Runs the parts, and writes the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", help="of an environment with vLLM")
    parser.add_argument("--part", choices=PARTS, action="append")
    args = parser.parse_args()
    for part in args.part or PARTS:
        if part == "page":
            continue
        if part in HOURS:
            run = run_hour(args.python, HOURS[part])
        elif part in SERVERS:
            run = run_loops(args.python, SERVERS[part])
        else:
            run = run_curve(args.python)
        results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
        results[part] = run
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    write_page(json.loads(RESULTS.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
