"""Holds estimates of speech, diffusion, indexes, adapters and drafts against the libraries.

    python -m benchmarks.workloads.run --python PY --vllm VLLM_PY --faiss FAISS_PY   # all parts
    python -m benchmarks.workloads.run --python PY --part speech                     # one part
    python -m benchmarks.workloads.run --part page                                   # the page

PY has torch, transformers and diffusers; VLLM_PY has vLLM 0.32; FAISS_PY has faiss-cpu. What runs
on the phantom is in whisper_streams.py, diffusion_stages.py and vllm_extras.py. Each part
replaces its entry in workloads.json; docs/results/estimates.md is written from that.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import ullage
from benchmarks.provenance import made_by, torch_version
from benchmarks.results import publish, table
from ullage.facts.families.builtin import find_model
from ullage.players.eager.workloads.answer import WorkloadEstimate

HERE: Final = Path(__file__).resolve().parent
RESULTS: Final = HERE / "workloads.json"
GPU: Final = "h100-80gb"
PARTS: Final = ("speech", "diffusion", "index", "vllm", "page")
MIB: Final = 2**20
_ULLAGE: Final = (sys.executable, "-c", "from ullage.cli import main; main()")

SPEECH: Final = (
    ("whisper-tiny", 8, 4), ("whisper-small", 8, 4), ("whisper-large-v3-turbo", 16, 8),
    ("whisper-large-v3", 8, 4),
)  # fmt: skip
# denoiser, images, side, offload, tiles
DIFFUSION: Final = (
    ("sd15-unet", 1, 512, "none", False), ("sd15-unet", 4, 512, "none", False),
    ("sd15-unet", 1, 768, "model", False), ("sd15-unet", 1, 512, "sequential", False),
    ("sd15-unet", 1, 1024, "none", True), ("dit-xl-2", 1, 256, "none", False),
    ("dit-xl-2", 8, 256, "model", False),
)  # fmt: skip
# faiss's name, vectors, width, ours
INDEXES: Final = (
    ("Flat", 20_000, 128, "flat"), ("HNSW32", 20_000, 128, "hnsw:links=32"),
    ("HNSW16", 20_000, 384, "hnsw:links=16"), ("IVF256,Flat", 20_000, 128, "ivf:lists=256"),
    ("IVF256,PQ16", 20_000, 128, "ivfpq:lists=256,codes=16"),
    ("IVF512,PQ48", 40_000, 384, "ivfpq:lists=512,codes=48"),
)  # fmt: skip
SERVER: Final = {"max_model_len": 8192, "max_num_batched_tokens": 8192, "max_num_seqs": 256}
MODEL, DRAFT = "llama-3.1-8b", "llama-3.2-1b"
# label, vLLM's arguments, ours
EXTRAS: Final[tuple[tuple[str, dict[str, Any], dict[str, Any]], ...]] = (
    ("neither", {}, {}),
    ("2 LoRA slots of rank 16", {"enable_lora": True, "max_loras": 2, "max_lora_rank": 16},
     {"lora_slots": 2, "lora_rank": 16}),
    ("4 LoRA slots of rank 64", {"enable_lora": True, "max_loras": 4, "max_lora_rank": 64},
     {"lora_slots": 4, "lora_rank": 64}),
    ("a draft, 1 token", {"speculative_config": {"num_speculative_tokens": 1}},
     {"draft": f"{DRAFT}:1"}),
    ("a draft, 4 tokens", {"speculative_config": {"num_speculative_tokens": 4}},
     {"draft": f"{DRAFT}:4"}),
)  # fmt: skip


def on_phantom(python: str, program: str, *words: str) -> dict[str, Any]:
    """Runs a program of this folder on the phantom; the figures that it prints."""
    with tempfile.TemporaryDirectory() as name:
        done = subprocess.run(
            [
                *_ULLAGE, "run", "--gpu", GPU, "--python", python,
                "--snapshot", str(Path(name, "run.pickle")), "--", str(HERE / program), *words,
            ],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
    return figures(done.stdout + done.stderr, program)


def figures(output: str, program: str) -> dict[str, Any]:
    """The line of figures in a program's output."""
    for line in output.splitlines():
        if line.startswith("figures: "):
            return json.loads(line.removeprefix("figures: "))
    raise SystemExit(f"{program} printed no figures:\n{output[-3000:]}")


def estimate_workload(model: str, gpu: str | None = GPU, **options: Any) -> WorkloadEstimate:
    """The estimate of what is served beside text."""
    found = ullage.capacity(model, gpu=gpu, **options).estimate
    if not isinstance(found, WorkloadEstimate):
        raise TypeError(f"{model}: found {found!r}, expected a workload")
    return found


def run_speech(python: str) -> list[dict[str, Any]]:
    """Every case of SPEECH: the estimate, and what was measured."""
    rows = []
    for model, streams, at_once in SPEECH:
        with tempfile.TemporaryDirectory() as name:
            path = Path(name, "config.json")
            path.write_text(json.dumps(dict(find_model(model).config.fields)), encoding="utf-8")
            seen = on_phantom(python, "whisper_streams.py", str(path), str(streams), str(at_once))
        place = estimate_workload(model, users=streams, max_seqs=at_once).places[0]
        sizes = {term.name: term.bytes for term in place.terms}
        rows.append({
            "case": f"{model}, {streams} streams, {at_once} at once",
            "weights": (sizes["weights"] + sizes["block rounding"], seen["weights"]),
            "caches": (sizes["cross-attention"] + sizes["text"], seen["caches"]),
            "peak": (*tensors(place), seen["burst_peak"]),
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def tensors(place: Any) -> tuple[int, int, int]:
    """What tensors take: likely, at least, at most; the context is not PyTorch's."""
    terms = [term for term in place.terms if term.name != "context"]
    return (
        sum(term.bytes for term in terms),
        sum(term.low_bytes for term in terms),
        sum(term.high_bytes for term in terms),
    )


def run_diffusion(python: str) -> list[dict[str, Any]]:
    """Every case of DIFFUSION."""
    rows = []
    for denoiser, images, side, offload, is_tiled in DIFFUSION:
        has_text = denoiser == "sd15-unet"
        case = {
            "denoiser": dict(find_model(denoiser).config.fields),
            "vae": dict(find_model("sd-vae").config.fields),
            "text": dict(find_model("clip-vit-l14").config.fields["text_config"]),
            "images": images, "side": side, "offload": offload, "tiled": is_tiled, "guided": True,
        }  # fmt: skip
        with tempfile.TemporaryDirectory() as name:
            path = Path(name, "case.json")
            path.write_text(json.dumps(case), encoding="utf-8")
            seen = on_phantom(python, "diffusion_stages.py", str(path))
        parts = ("sd-vae", "clip-vit-l14") if has_text else ("sd-vae",)
        estimate = estimate_workload(
            denoiser, parts=parts, users=images, image=side, offload=offload, tiles=is_tiled
        )
        stages = ("text", "denoiser", "decoder") if has_text else ("denoiser", "decoder")
        rows.append({
            "case": f"{denoiser}, {images} of {side} pixels, offload {offload}"
            + (", tiles" if is_tiled else ""),
            "stages": {
                stage: (value, seen[stage])
                for stage, (_, value, _) in zip(stages, estimate.figures, strict=True)
            },
            "peak": (*tensors(estimate.places[0]), max(seen[stage] for stage in stages)),
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def run_index(python: str) -> dict[str, Any]:
    """Every case of INDEXES."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "cases.json")
        path.write_text(json.dumps([case[:3] for case in INDEXES]), encoding="utf-8")
        done = subprocess.run(
            [python, str(HERE / "index_sizes.py"), str(path)],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    seen = figures(done.stdout, "index_sizes.py")
    rows = []
    for (name, vectors, width, ours), size in zip(INDEXES, seen["sizes"], strict=True):
        kind, _, rest = ours.partition(":")
        text = f"{kind}:vectors={vectors},width={width},headroom=0%" + (f",{rest}" if rest else "")
        estimate = estimate_workload(text, gpu=None)
        rows.append({"case": f"{name}, {vectors:,} x {width}",
                     "bytes": (estimate.places[0].bytes, size)})  # fmt: skip
    return {"faiss": seen["faiss"], "rows": rows}


def run_vllm(python: str) -> list[dict[str, Any]]:
    """Every case of EXTRAS."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for model in (MODEL, DRAFT):
            fields = {"architectures": ["LlamaForCausalLM"], **find_model(model).config.fields}
            Path(name, model).mkdir()
            Path(name, model, "config.json").write_text(
                json.dumps({**fields, "torch_dtype": "bfloat16"}), encoding="utf-8"
            )
        for label, theirs, ours in EXTRAS:
            arguments = {**SERVER, **theirs}
            if "speculative_config" in theirs:
                draft = {"method": "draft_model", "model": str(Path(name, DRAFT))}
                arguments["speculative_config"] = {**theirs["speculative_config"], **draft}
            path = Path(name, "arguments.json")
            path.write_text(json.dumps(arguments), encoding="utf-8")
            seen = on_phantom(python, "vllm_extras.py", str(Path(name, MODEL)), str(path))
            rows.append({"case": label, **compare_server(ours, seen), "seen": seen})
            print(rows[-1], flush=True)
    return rows


def compare_server(ours: dict[str, Any], seen: dict[str, int]) -> dict[str, Any]:
    """The estimate of a server beside what its start counts."""
    plan = {
        "gpu": GPU, "context": SERVER["max_model_len"], "eager": True,
        "batched_tokens": SERVER["max_num_batched_tokens"],
        "max_seqs": SERVER["max_num_seqs"], **ours,
    }  # fmt: skip
    estimate = ullage.capacity(MODEL, **plan).estimate
    given = ullage.capacity(MODEL, kv_bytes=seen["cache"], **plan).estimate
    sizes = {term.name: term.bytes for term in estimate.terms}
    weights = sizes["weights"] + sizes.get("adapters and drafts", 0)
    low, likely, high = estimate.kv_bytes
    return {
        "weights": (weights, seen["weights"]),
        "cache": (likely, low, high, seen["cache"]),
        "blocks": (given.num_blocks[1], seen["blocks"]),
        "tokens": (given.tokens[1], seen["tokens"]),
    }


def off(ours: float, seen: float) -> str:
    """An error in percent."""
    return f"{100 * (ours - seen) / seen:+.2f} %"


def mib(size: float) -> str:
    """A size."""
    return f"{size / MIB:,.1f}"


WITH_PEAK: Final = (">peak", ">interval", ">measured", ">error", ">inside")


def with_peak(row: dict[str, Any]) -> list[str]:
    """The columns of an interval and what was seen."""
    likely, low, high, seen = row["peak"]
    inside = "yes" if low <= seen <= high else "no"
    return [mib(likely), f"{mib(low)} to {mib(high)}", mib(seen), off(likely, seen), inside]


def page(results: dict[str, Any]) -> str:
    """The page."""
    parts = [
        "# Estimates of speech, diffusion, indexes, adapters and drafts",
        made_by("benchmarks.workloads.run", torch=results["torch"]),
        INTRODUCTION,
    ]
    sections = {
        "speech": speech_part, "diffusion": diffusion_part, "index": index_part, "vllm": vllm_part,
    }  # fmt: skip
    parts += [section(results[name]) for name, section in sections.items() if name in results]
    return "\n\n".join(parts) + "\n"


INTRODUCTION: Final = f"""`ullage estimate` against the libraries themselves with random weights
on the phantom, a simulated {GPU}: sizes are MiB of PyTorch's tensors at the peak
(`torch.cuda.max_memory_allocated()`); the driver's context is not among them. "Inside" says whether
the measured peak lies between the estimate's two ends."""


def speech_part(rows: Sequence[dict[str, Any]]) -> str:
    """Whisper."""
    body = [
        [row["case"], off(*row["weights"]), off(*row["caches"]), *with_peak(row)] for row in rows
    ]
    head = ("case", ">weights", ">caches", *WITH_PEAK)
    return (
        "## Speech\n\ntransformers' Whisper in bf16: every stream has a window and 448 tokens, "
        "then some get their next window at once, and their old caches go when the new ones are "
        "there.\n\n" + table(head, body)
    )


def diffusion_part(rows: Sequence[dict[str, Any]]) -> str:
    """diffusers."""
    body = []
    for row in rows:
        stages = ", ".join(f"{stage} {off(*pair)}" for stage, pair in row["stages"].items())
        body.append([row["case"], stages, *with_peak(row)])
    head = ("case", ">each stage", *WITH_PEAK)
    return (
        "## Diffusion\n\ndiffusers' own pipelines in fp16 with guidance, two steps. The workspaces "
        "of cuDNN's convolutions follow a model on the phantom as well as in the estimate, so that "
        "this table says nothing about them.\n\n" + table(head, body)
    )


def index_part(results: dict[str, Any]) -> str:
    """faiss."""
    body = [
        [row["case"], f"{row['bytes'][0]:,}", f"{row['bytes'][1]:,}", off(*row["bytes"])]
        for row in results["rows"]
    ]
    return (
        f"## Indexes\n\nfaiss-cpu {results['faiss']}: the bytes of the index as it is written, of "
        "random vectors.\n\n" + table(("index", ">estimate", ">faiss", ">error"), body)
    )


def vllm_part(rows: Sequence[dict[str, Any]]) -> str:
    """vLLM with adapters and drafts."""
    body = []
    for row in rows:
        likely, low, high, seen = row["cache"]
        body.append([
            row["case"], mib(row["weights"][1]), off(*row["weights"]), mib(likely),
            mib(seen), off(likely, seen), "yes" if low <= seen <= high else "no",
            f"{row['blocks'][0]:,}", f"{row['blocks'][1]:,}",
        ])  # fmt: skip
    head = (
        "with", ">weights", ">error", ">cache, estimate", ">cache", ">error", ">inside",
        ">blocks, estimate", ">blocks",
    )  # fmt: skip
    return (
        f"## Adapters and drafts\n\nvLLM 0.32 with {MODEL}, "
        f"{SERVER['max_num_batched_tokens']:,} tokens and {SERVER['max_num_seqs']} requests a "
        f"step, without graphs; the draft is {DRAFT}. Blocks: given the bytes that the start "
        "counts.\n\n" + table(head, body)
    )


def main() -> None:
    """Runs parts, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python")
    parser.add_argument("--vllm")
    parser.add_argument("--faiss")
    parser.add_argument("--part", choices=PARTS)
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    runs = {
        "speech": (run_speech, options.python), "diffusion": (run_diffusion, options.python),
        "index": (run_index, options.faiss), "vllm": (run_vllm, options.vllm),
    }  # fmt: skip
    for name, (run, python) in runs.items():
        if options.part in (None, name):
            if python is None:
                raise SystemExit(f"{name}: which interpreter? see --help")
            results[name] = run(python)
    if options.python is not None:
        results["torch"] = torch_version(Path(options.python))
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    publish("estimate-workloads", page(results))


if __name__ == "__main__":
    main()
