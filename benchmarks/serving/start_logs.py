"""Starts vLLM on the phantom with different flags, and says what took the cache's tokens.

    python -m benchmarks.serving.start_logs --python VENV/bin/python      # starts and the page
    python -m benchmarks.serving.start_logs --python VENV/bin/python --name util85
    python -m benchmarks.serving.start_logs                               # only the page

The logs are in tests/unit/explain/server_logs: the lines that name sizes, versions or failures, as
the engine printed them, without the model's folder. The page is docs/results/explain.md: each
start beside the first one. The interpreter has vLLM 0.32.0.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.provenance import made_by
from benchmarks.results import publish
from ullage.explain.servers.differences import ROUNDING, StartChange, compare_starts
from ullage.explain.servers.reader import read_server
from ullage.explain.servers.start import ServerStart
from ullage.facts.families.builtin import find_model
from ullage.ground.units import GIB

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
LOGS: Final = ROOT / "tests" / "unit" / "explain" / "server_logs"
MODEL: Final = "llama-3.1-8b"
GPU: Final = "l40s"
FIRST: Final = "base"
_ULLAGE: Final = (sys.executable, "-c", "from ullage.cli import main; main()")
# Words of the lines that are kept.
_KEPT: Final = re.compile(
    r"GiB|KV cache|KV\s+cache|version|non-default args|engine \(v|max model len|Chunked prefill|"
    r"Loading|loading|num_gpu_blocks|Compiling|Directly load|startup complete|ValueError|"
    r"init engine"
)
COMMON: Final = ("--max-model-len", "8192", "--enforce-eager")
STARTS: Final[dict[str, tuple[str, ...]]] = {
    FIRST: (),
    "util85": ("--gpu-memory-utilization", "0.85"),
    "batched16k": ("--max-num-batched-tokens", "16384"),
    "fp8kv": ("--kv-cache-dtype", "fp8"),
    "fp8w": ("--quantization", "fp8"),
    "seqs1024": ("--max-num-seqs", "1024"),
    "override": ("--num-gpu-blocks-override", "4000"),
    "kvbytes": ("--kv-cache-memory-bytes", "10G"),
    "together": ("--kv-cache-dtype", "fp8", "--gpu-memory-utilization", "0.85",
                 "--max-num-batched-tokens", "16384"),
    "graphs": ("--no-enforce-eager",),
    "long32k": ("--max-model-len", "32768"),
    "noprefix": ("--no-enable-prefix-caching",),
    "lora": ("--enable-lora", "--max-loras", "4", "--max-lora-rank", "64"),
    "whole": ("--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192"),
    "fp32": ("--dtype", "float32"),
    "tp2": ("--tensor-parallel-size", "2"),
    "both8": ("--quantization", "fp8", "--kv-cache-dtype", "fp8", "--max-num-seqs", "1024"),
    "long": ("--max-model-len", "131072", "--gpu-memory-utilization", "0.6"),
    "none": ("--gpu-memory-utilization", "0.3"),
}  # fmt: skip
"""By name, the flags beside COMMON."""


def start(name: str, python: str) -> None:
    """One start; its log."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, MODEL)
        folder.mkdir()
        fields = {"architectures": ["LlamaForCausalLM"], **find_model(MODEL).config.fields}
        (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
        done = subprocess.run(
            [
                *_ULLAGE, "run", "--gpu", GPU, "--python", python, *_rank(name), "--",
                str(HERE / "start_log.py"), "serve", str(folder), *COMMON, *STARTS[name],
            ],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        keep(name, (done.stdout + done.stderr).replace(str(folder), MODEL))


def _rank(name: str) -> tuple[str, ...]:
    """The first of the ranks of a start, and how many there are."""
    flags = STARTS[name]
    if "--tensor-parallel-size" not in flags:
        return ()
    number = flags[flags.index("--tensor-parallel-size") + 1]
    return ("--world-size", number, "--rank", "0")


def keep(name: str, text: str) -> None:
    """Writes the lines that are read."""
    # Of tracebacks and compilers nothing is kept: they name folders of the machine.
    kept = [line for line in text.splitlines() if _KEPT.search(line)]
    lines = [line[:1200] for line in kept if not line.startswith("[rank")]
    LOGS.mkdir(parents=True, exist_ok=True)
    (LOGS / f"{name}.log").write_text("\n".join(lines) + "\n", encoding="utf-8")


def page() -> str:
    """The page."""
    starts = {name: read_server(LOGS / f"{name}.log") for name in STARTS if _is_there(name)}
    first = starts[FIRST]
    rows = [
        "| flags | tokens | change | what took them | named | the flags alone |",
        "|---|--:|--:|---|--:|---|",
    ]
    failures, shares, alone = [], [], 0
    for name, other in starts.items():
        flags = " ".join(STARTS[name])
        if other.failure is not None:
            remedies = "; ".join(other.failure.remedies)
            failures.append(f"- `{flags}`: {other.failure.what}. What to change: {remedies}.")
        elif name != FIRST:
            change = compare_starts(first, other)
            shares.append(change.named_frac)
            wrong = sorted(_named(change) ^ _changed(name)) if change.tokens else []
            alone += not wrong
            rows.append(
                f"| `{flags}` | {other.tokens:,} | {change.tokens:+,} | {_causes(change)} | "
                f"{100 * change.named_frac:.1f} % | {', '.join(wrong) or 'yes'} |"
            )
    parts = [
        "# What took the tokens of a server's cache",
        made_by("benchmarks.serving.start_logs", torch=None),
        _introduction(first, shares, alone),
        "\n".join(rows),
        "## Starts that fail\n\n" + "\n".join(failures),
    ]
    return "\n\n".join(parts) + "\n"


def _introduction(first: ServerStart, shares: list[float], alone: int) -> str:
    """What was done, and what came of it."""
    many = sum(share >= 0.95 for share in shares)
    return (
        f"vLLM {first.version} starts on the phantom (`ullage run --gpu {GPU}`) with {MODEL} and "
        f"`{' '.join(COMMON)}`; it prints {first.tokens:,} tokens. Each row is a start with the "
        "flags beside these, and what `ullage diff` says of the two logs; *named* is the share of "
        f"all changes that an option explains. Of {len(shares)} pairs, {many} have 95 % or more. "
        f"*the flags alone*: whether the options that it names are those that were changed, all of "
        f"them and no others, or which are not; {alone} of {len(shares)} are. Where no token "
        "changed there is nothing to name; `--no-enable-chunked-prefill` changes none of its own."
    )


def _changed(name: str) -> set[str]:
    """The options that a start's flags set, as the engine calls them."""
    words = [word for word in STARTS[name] if word.startswith("--")]
    return {word.removeprefix("--").removeprefix("no-").replace("-", "_") for word in words}


def _named(change: StartChange) -> set[str]:
    """The options that a comparison names, but for those of rounding."""
    whys = " ".join(cause.why for cause in change.causes if cause.why != ROUNDING)
    return {name for name, _, _ in change.options if re.search(rf"\b{name} ", whys)}


def _is_there(name: str) -> bool:
    return (LOGS / f"{name}.log").is_file()


def _causes(change: StartChange) -> str:
    texts = [
        f"{cause.part} {cause.tokens:+,.0f}"
        + ("" if cause.bytes is None else f" ({cause.bytes / GIB:+.2f} GiB)")
        + f": {cause.why or 'no reason'}"
        for cause in change.causes
        if cause.why != ROUNDING
    ]
    return "; ".join(texts)


def main() -> None:
    """Runs what was asked for, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", help="interpreter with vLLM; without it only the page")
    parser.add_argument("--name", choices=STARTS, action="append")
    words = parser.parse_args()
    for name in (words.name or STARTS) if words.python else ():
        start(name, words.python)
    publish("server-logs", page())


if __name__ == "__main__":
    main()
