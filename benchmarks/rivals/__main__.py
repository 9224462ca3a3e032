"""Asks the tools, compares their answers with recordings, and writes the page: see the package."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.provenance import made_by, torch_version
from benchmarks.results import publish, read_rows, table
from benchmarks.serving.starts import ask, load
from ullage.ground.units import GIB

HERE = Path(__file__).resolve().parent
ACCURACY = HERE.parent / "accuracy"
TRUTH = ACCURACY / "truth" / "h200-torch2.11.0" / "truth.json"
TIMEOUT_S = 3600
# What each predicts, and the recorded figure that this is compared with.
TOOLS = {
    "MemTracker": ("bytes of tensors, by operations on fake ones", "allocated"),
    "accelerate": ("training with Adam, batch 1, by the number of parameters", "allocated"),
    "torch-kitsune": ("peak on the GPU, by parameters and outputs of layers, and 15 %", "reserved"),
    "FakeGPU": ("PyTorch's counter, on libraries in the place of NVIDIA's", "allocated"),
}
# A start of vLLM by its name -> what ridgepoint calls its GPU.
STARTS = {"LLaVA 1.6 Mistral 7B, H100": "h100-80gb", "Llama 3.1 8B, A100 40 GB": "a100-40gb"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool says of one recording.

    Attributes:
        tool, subject: who was asked, and about what.
        recorded_bytes: what was recorded.
        answered_bytes: None: there is no answer.
        why: then the reason.
    """

    tool: str
    subject: str
    recorded_bytes: int
    answered_bytes: int | None
    why: str = ""

    @property
    def error(self) -> float | None:
        """As a share of what was recorded; below 0: too little."""
        if self.answered_bytes is None:
            return None
        return self.answered_bytes / self.recorded_bytes - 1


def recorded_peaks() -> dict[str, dict[str, int]]:
    """The highest peaks of each training that was recorded to its end, by "allocated" and so on."""
    truth = json.loads(TRUTH.read_text(encoding="utf-8"))
    return {
        name: {key: max(step[key] for step in run["steps"]) for key in ("allocated", "reserved")}
        for name, run in truth.items()
        if run.get("steps") and not run.get("error") and "generate" not in name
    }


def of_ullage(peaks: dict[str, dict[str, int]]) -> Iterator[Answer]:
    """What `ullage run` answers: the rows of docs/results/accuracy.md, in MiB."""
    for row in read_rows("accuracy-h200"):
        if not row["table"] and row["workload"] in peaks:
            for key in ("allocated", "reserved"):
                num_bytes = round(float(row[key].replace(",", "")) * 2**20)
                name = row["workload"]
                yield Answer(f"ullage run, {key}", name, peaks[name][key], num_bytes)


def of_tool(
    tool: str,
    peaks: dict[str, dict[str, int]],
    command: Sequence[str | Path],
    packages: Path | None,
) -> Iterator[Answer]:
    """The answers of one of TOOLS, in processes of an environment with torch."""
    variables = {**os.environ, "FAKEGPU_PROFILE": "h100", "CUDA_VISIBLE_DEVICES": "0"}
    if packages is not None:
        variables["PYTHONPATH"] = str(packages)
    done = subprocess.run(
        [*command, HERE / "asked.py", tool, *peaks], cwd=ACCURACY, env=variables, text=True,
        capture_output=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    lines = [
        json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"workload"')
    ]
    answers = {line["workload"]: line for line in lines}
    for name, peak in peaks.items():
        line = answers.get(name, {"why": "it ended without an answer"})
        recorded = peak[TOOLS[tool][1]]
        yield Answer(tool, name, recorded, line.get("bytes"), line.get("why", ""))


@contextmanager
def _hub(hf: Any, config: Path, num_parameters: int) -> Iterator[None]:
    """While this lasts, the Hub answers with a file that is here, and the number of parameters."""

    def download(_repo: str, filename: str, _revision: str) -> Any:
        if filename == "config.json":
            return json.loads(config.read_text(encoding="utf-8"))
        return {"metadata": {"total_size": 2 * num_parameters}, "weight_map": {}}

    original, hf._download_json = hf._download_json, download
    try:
        yield
    finally:
        hf._download_json = original


def of_servers(folders: Sequence[Path]) -> Iterator[Answer]:
    """ridgepoint and `ullage capacity` about the cache that vLLM printed at its start."""
    sys.path += map(str, folders)  # ridgepoint needs huggingface_hub
    import ridgepoint
    from ridgepoint import hf

    for start in load()["start"]:
        if start["name"] not in STARTS:
            continue
        outcome = ask(start)
        yield Answer("ullage estimate", start["name"], outcome.printed_bytes, outcome.kv_bytes[1])
        source = start["command"].split()[0]
        config = HERE.parents[1] / source if source.endswith(".json") else None
        try:
            if config is None:
                text = ridgepoint.fit("llama-3-8b", STARTS[start["name"]], as_json=True)
            else:
                count = outcome.num_parameters
                with _hub(hf, config, count):
                    text = ridgepoint.fit(
                        f"local/{config.stem}", STARTS[start["name"]], as_json=True
                    )
            pool = json.loads(text)["memory"]["kv_pool_bytes"]["best"]
            yield Answer("ridgepoint", start["name"], outcome.printed_bytes, round(pool))
        except Exception as error:  # whatever a tool raises is its answer
            yield Answer("ridgepoint", start["name"], outcome.printed_bytes, None, str(error))


def version_of(name: str, *folders: Path) -> str:
    """The version of a package in one of these folders; "" where it is in none."""
    found = [one.version for one in distributions(name=name, path=[*map(str, folders)])]
    return found[0] if found else ""


def summarise(tool: str, answers: Sequence[Answer], predicts: str, against: str) -> list[str]:
    """The tool's row of the table."""
    errors = [abs(one.error) for one in answers if one.error is not None]
    shown = (f"{median(errors):.1%}", f"{max(errors):.1%}") if errors else ("", "")
    return [tool, predicts, against, f"{len(errors)} of {len(answers)}", *shown]


def show(one: Answer) -> list[str]:
    """An answer's row."""
    said = "" if one.answered_bytes is None else f"{one.answered_bytes / GIB:.3f}"
    error = "" if one.error is None else f"{one.error:+.1%}"
    recorded = f"{one.recorded_bytes / GIB:.3f}"
    return [one.tool, one.subject, recorded, said, error, " ".join(one.why.split())[:120]]


def render(groups: dict[str, list[Answer]], versions: str, missing: list[str], torch: str) -> str:
    """The report."""
    about = {
        "ullage run, allocated": ("PyTorch's own allocator on a simulated GPU", "allocated"),
        "ullage run, reserved": ("the same", "reserved"),
        "ullage estimate": ("vLLM's cache, by the model's configuration", "cache printed"),
        "ridgepoint": ("vLLM's cache, by the model's dimensions", "cache printed"),
        **TOOLS,
    }
    count = len(groups["ullage run, reserved"])
    asked = (
        f"Peaks of {count} trainings that were recorded on an H200 with torch 2.11 "
        "([accuracy](accuracy.md)), and the caches that two starts of vLLM printed "
        "([serving](serving.md)). Each tool is called as its documentation says "
        f"(`benchmarks/rivals/asked.py`), without a GPU: {versions}. *error* is that of the figure "
        "which the tool predicts, against the one that it is compared with."
    )
    conditions = (
        "Conditions that no tool chose: MemTracker runs on CPU tensors, with the optimizers' "
        "defaults of a GPU, as the backward pass of fake CUDA tensors asks for one. accelerate's "
        "command takes names of the Hub, so the two functions that it calls were called; it counts "
        "no activations, and says so. For ridgepoint the Hub is answered from files; starts with a "
        "utilization or a GPU that it has no name for were not asked."
    )
    seen = (
        "Recordings among these corrected ullage's model of cuDNN's workspaces: its figures are "
        "not blind. No other tool has seen them."
    )
    lines = [
        "# Beside other tools", made_by("benchmarks.rivals", torch=torch), asked, conditions, seen
    ]  # fmt: skip
    if missing:
        lines.append(f"**Left out: {'; '.join(missing)}.**")
    head = ("tool", "predicts", "against", ">answered", ">median error", ">worst")
    rows = [summarise(tool, answers, *about[tool]) for tool, answers in groups.items()]
    lines += [table(head, rows), "## Each answer"]
    head = ("tool", "of", ">recorded, GiB", ">answered, GiB", ">error", "why none")
    lines.append(table(head, [show(one) for answers in groups.values() for one in answers]))
    return "\n\n".join(lines) + "\n"


def main() -> None:
    """Asks all that are given, and writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, required=True, help="an interpreter with torch")
    parser.add_argument("--packages", type=Path, help="where torch-kitsune and ridgepoint are")
    parser.add_argument("--fakegpu", type=Path, help="a built clone of FakeGPU")
    args = parser.parse_args()
    peaks = recorded_peaks()
    python = args.python.absolute()
    groups: dict[str, list[Answer]] = {}
    for answer in of_ullage(peaks):
        groups.setdefault(answer.tool, []).append(answer)
    missing = []
    packages = None if args.packages is None else args.packages.absolute()
    for tool in TOOLS:
        command: list[str | Path] = [python]
        if tool == "FakeGPU" and args.fakegpu is None:
            missing.append("FakeGPU, which is not on PyPI (`--fakegpu DIR`)")
            continue
        if tool == "torch-kitsune" and packages is None:
            missing.append("torch-kitsune and ridgepoint (`--packages DIR`)")
            continue
        if tool == "FakeGPU":
            command = [args.fakegpu.absolute() / "fgpu", python]
        groups[tool] = list(of_tool(tool, peaks, command, packages))
    site = python.parent.parent / "lib"
    folders = [*([packages] if packages else []), *site.glob("python3.*/site-packages")]
    if packages is not None:
        for answer in of_servers(folders):
            groups.setdefault(answer.tool, []).append(answer)
    names = ("torch", "accelerate", "torch-kitsune", "ridgepoint")
    versions = ", ".join(f"{name} {text}" for name in names if (text := version_of(name, *folders)))
    publish("rivals", render(groups, versions, missing, torch_version(args.python)))


if __name__ == "__main__":
    main()
