"""Runs `ullage serve` on fixed cases, and writes docs/results/serve.md.

    python -m benchmarks.serving.serve --python VENV/bin/python              # all parts
    python -m benchmarks.serving.serve --python VENV/bin/python --part hour  # one part

    hour    an hour of traffic in the shape of Azure's of 2023, with its time on this machine, and
            the same command beside it: are the documents equal?
    loops   closed loops that were measured on real servers (published_loops.csv)
    page    only writes the page, from serve.json

The interpreter has vLLM 0.32.0. Each part replaces its entry in serve.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.provenance import made_by
from ullage.models.builtin import find_model

HERE: Final = Path(__file__).resolve().parent
PAGE: Final = HERE.parent.parent / "docs" / "results" / "serve.md"
RESULTS: Final = HERE / "serve.json"
LOOPS: Final = HERE / "published_loops.csv"
GPU: Final = "h100-80gb"
COMMAND: Final = (
    "vllm", "serve", "llama-3.1-8b", "--max-model-len", "16384", "--enforce-eager",
)  # fmt: skip
HOUR: Final = "azure-code:duration=1h"
SLO: Final = "ttft=1s,tpot=50ms"
ROUNDS: Final = 3
"""Requests of each user of a closed loop."""
PARTS: Final = ("hour", "loops", "page")
_ULLAGE: Final = (sys.executable, "-c", "from ullage.cli.main import main; main()")


def serve(python: str, output: Path) -> subprocess.Popen[bytes]:
    """Starts `ullage serve` with the hour."""
    words = [
        *_ULLAGE, "serve", "--gpu", GPU, "--traffic", HOUR, "--slo", SLO, "--quiet",
        "-o", str(output), "--python", python, "--", *COMMAND,
    ]  # fmt: skip
    return subprocess.Popen(words, start_new_session=True)


def run_hour(python: str) -> dict[str, Any]:
    """The hour, twice at the same time; without its levels."""
    with tempfile.TemporaryDirectory() as name:
        outputs = [Path(name, f"{number}.json") for number in range(2)]
        begin_s = time.monotonic()
        processes = [serve(python, output) for output in outputs]
        for process in processes:
            if process.wait():
                raise SystemExit(f"`ullage serve` ended with {process.returncode}")
        wall_s = time.monotonic() - begin_s
        first, again = (json.loads(output.read_text(encoding="utf-8")) for output in outputs)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    real = first.pop("real_s")
    again.pop("real_s")
    is_equal = first == again
    for left_out in ("levels", "rejected", "step_times"):
        del first[left_out]
    return {
        "document": first,
        "is_equal": is_equal,
        "real_s": real,
        "wall_s": wall_s,
        "cpu_s": (used.ru_utime + used.ru_stime) / 2,
        "load": round(os.getloadavg()[1], 1),
    }


def run_loops(python: str) -> dict[str, Any]:
    """The published closed loops, on one start of each server."""
    rows = list(csv.DictReader(LOOPS.open(encoding="utf-8")))
    (model, ranks), *others = {(row["model"], row["tp"]) for row in rows}
    if others:
        raise SystemExit("published_loops.csv has several servers; one is run here")
    loops = [
        {
            "users": int(row["users"]), "requests": ROUNDS * int(row["users"]),
            "prompt": int(row["prompt"]), "output": int(row["output"]), "stagger": stagger,
        }
        for stagger in (1, 0)
        for row in rows
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = {"architectures": ["Qwen3ForCausalLM"], **find_model(model).config.fields}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        task = {
            "arguments": [
                name, "--max-model-len", "8192", "--enforce-eager", "--tensor-parallel-size", ranks,
            ],
            "config": str(folder / "config.json"), "gpu": GPU, "loops": loops,
        }  # fmt: skip
        (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
        subprocess.run(
            [
                *_ULLAGE, "run", "--gpu", GPU, "--python", python, "--clock", "virtual",
                "--values", "off", "--world-size", ranks, "--rank", "0",
                "--snapshot", str(folder / "loops.pickle"), "--quiet",
                "--", str(HERE / "closed_loops.py"), str(folder / "task.json"),
                str(folder / "result.json"),
            ],
            check=False,
        )  # fmt: skip
        return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def page(results: dict[str, Any]) -> str:
    """The page."""
    engine = results["hour"]["document"]["engine"]
    parts = [
        "# `ullage serve`: an hour of traffic, and measured servers",
        made_by("benchmarks.serving.serve", torch=results["hour"]["document"]["torch"]),
        (
            f"The engine is vLLM {engine['version']} on the phantom, with its own scheduler and "
            f"blocks ([serve.md](../guide/serve.md))."
        ),
        hour_part(results["hour"]),
    ]
    parts.append(loops_part(results["loops"]) if "loops" in results else NO_LOOPS)
    return "\n\n".join(parts) + "\n"


NO_LOOPS: Final = """## Measured servers

The closed loops in `benchmarks/serving/published_loops.csv` were measured on two GPUs that share
each layer. They have not been run here yet: the comparison of latencies with measured servers is
missing."""


def hour_part(hour: dict[str, Any]) -> str:
    """An hour of traffic."""
    document = hour["document"]
    everyone, engine = document["classes"][0], document["engine"]
    rows = ["| | p50 | p90 | p99 |", "|---|--:|--:|--:|"]
    for label, name in TIMES.items():
        cells = " | ".join(f"{1e3 * value:,.1f} ms" for value in everyone[name].values())
        rows.append(f"| {label} | {cells} |")
    figures = HOUR_FIGURES.format(
        answered=document["num_answered"],
        sent=everyone["num_requests"],
        rate=document["output_tokens_per_s"],
        good=100 * everyone["goodput_frac"],
        tokens=engine["kv_cache_tokens"],
        gib=engine["kv_cache_bytes"] / 2**30,
        peak=100 * document["usage_peak_frac"],
        preemptions=document["num_preemptions"],
    )
    took = HOUR_TOOK.format(
        wall=hour["wall_s"] / 60,
        cpu=hour["cpu_s"] / 60,
        load=hour["load"],
        steps=document["steps"]["num_steps"],
        same="the same" if hour["is_equal"] else "not the same",
        **hour["real_s"],
    )
    command = f"ullage serve --gpu {GPU} --traffic {HOUR} --slo {SLO} -- {' '.join(COMMAND)}"
    return "\n".join(["## An hour", "", f"`{command}`", "", figures, "", *rows, "", took])


TIMES: Final = {
    "to the first token": "ttft_s",
    "for each token after it": "tpot_s",
    "to the last token": "e2e_s",
    "in the queue": "queue_s",
}
HOUR_FIGURES: Final = (
    "{answered:,} of {sent:,} requests were answered, with {rate:,.0f} tokens a second; "
    "{good:.1f} % within the objective. The cache has {tokens:,} tokens ({gib:.2f} GiB), of which "
    "{peak:.0f} % were in use at most; {preemptions} preemptions."
)
HOUR_TOOK: Final = (
    "One run took {cpu:.1f} minutes of a processor. Two ran side by side, and a lot of other work "
    "beside them (a load of {load} on two cores), so that the clock on the wall says {wall:.0f} "
    "minutes: {start_s:.0f} s to start the engine, {measure_s:.0f} s to measure its steps, "
    "{replay_s:.0f} s for {steps:,} steps. The two runs gave {same} figures to the last digit."
)
LOOPS_TEXT: Final = (
    "{model} on {tp} H100 SXM, bf16, closed loops; measured with vLLM {vllm_version} "
    "(aiconfigurator-core 0.12.0, systems/silicon_sample.csv, Apache-2.0), here with {version}. "
    "Of {number} rows the median error of the time for each token after the first is "
    "{tpot:.0f} %, of the time to the first token {ttft:.0f} % where requests come evenly and "
    "{burst:.0f} % where those of all users come at once; the measured time to the first token is "
    "between the two in {between}. End to end, which follows from both, the median error is "
    "{e2e:.0f} % evenly and {e2e_burst:.0f} % at once. Times are means, in milliseconds."
)
LOOPS_NOTES: Final = (
    "How many requests each user sent, whether all users began at once, and with which limits the "
    "server ran, is not published; the time to the first token hangs on that most. Here each user "
    "sends {rounds} requests, the first of which is not counted: *evenly*, it has an answer of "
    "another length for each user; *at once*, all are alike and stay in step. The engine runs "
    "without CUDA graphs and with NCCL's all-reduce in place of vLLM's own. At 128 users and 4,096 "
    "tokens the cache is full, and requests wait for it. At 64 and 128 users the times for each "
    "token are too short here: scheduling and detokenizing on the CPU, which grow with the number "
    "of users, are not counted, and a likely reason. Nothing was fitted to these rows. The source "
    "has ten more of this model in bf16, with answers of 1,024 tokens, and rows of other models, "
    "which were not run."
)
LOOPS_HEAD: Final = (
    "| prompt | output | users | first, measured | evenly | at once | each, measured | evenly "
    "| error | cache |\n|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def loops_part(loops: dict[str, Any]) -> str:
    """Measured servers."""
    published = list(csv.DictReader(LOOPS.open(encoding="utf-8")))
    number = len(published)
    rows: list[str] = []
    errors: dict[str, list[float]] = {
        name: [] for name in ("ttft", "burst", "tpot", "e2e", "e2e_burst")
    }
    between = 0
    answers = zip(published, loops["rows"][:number], loops["rows"][number:], strict=True)
    for row, evenly, at_once in answers:
        ttft, tpot, gaps = float(row["ttft_ms"]), float(row["tpot_ms"]), int(row["output"]) - 1
        first, burst, each = (
            1e3 * evenly["ttft_s"], 1e3 * at_once["ttft_s"], 1e3 * evenly["tpot_s"],
        )  # fmt: skip
        for name, error in (
            ("ttft", first / ttft - 1), ("burst", burst / ttft - 1), ("tpot", each / tpot - 1),
            ("e2e", (first + gaps * each) / (ttft + gaps * tpot) - 1),
            ("e2e_burst", (burst + gaps * 1e3 * at_once["tpot_s"]) / (ttft + gaps * tpot) - 1),
        ):  # fmt: skip
            errors[name].append(abs(error))
        between += min(first, burst) <= ttft <= max(first, burst)
        cells = [row["prompt"], row["output"], row["users"]]
        cells += [f"{value:,.1f}" for value in (ttft, first, burst, tpot, each)]
        usage = 100 * evenly["usage_peak_frac"]
        rows.append(f"| {' | '.join(cells)} | {100 * (each / tpot - 1):+.0f} % | {usage:.0f} % |")
    medians = {name: 100 * statistics.median(values) for name, values in errors.items()}
    text = LOOPS_TEXT.format(
        **published[0] | medians,
        version=loops["engine"]["version"],
        number=number,
        between=between,
    )
    notes = LOOPS_NOTES.format(rounds=ROUNDS)
    return "\n".join(["## Measured servers", "", text, "", LOOPS_HEAD, *rows, "", notes])


def main() -> None:
    """Runs the parts, and writes the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", help="of an environment with vLLM")
    parser.add_argument("--part", choices=PARTS, action="append")
    args = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    runs = {"hour": run_hour, "loops": run_loops}
    for part in args.part or PARTS:
        if part in runs:
            results[part] = runs[part](args.python)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
