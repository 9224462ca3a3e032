"""Records the documents of a fixed set of commands, so that a refactoring can be held to them.

    python -m benchmarks.commands --python .envs/torch-newest/bin/python           # compares
    python -m benchmarks.commands --python .envs/torch-newest/bin/python --write   # records

Each command prints one JSON document. Versions, times and temporary names differ from run to run
and are replaced. Every figure, text and row that was recorded must come out again, the figures to
their last digit. The fields of all documents of a verb are in one file (STRUCTURE), so that a new
field is one line there and touches no recorded document.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DIRECTORY = ROOT / "tests" / "golden" / "commands"
SNAPSHOTS = ROOT / "tests" / "golden" / "snapshots"
STRUCTURE = ROOT / "tests" / "golden" / "structure.txt"
MAIN = "from ullage.cli import main; main()"
# Measured by a clock, or of this machine.
_MEASURED = re.compile(
    r"(?:^|_)(?:wall_s|replay_s|seconds|elapsed_s|duration_s|host_\w*bytes|pinned_needed_bytes|created|date"
    r"|time|torch|ullage|python|pid|snapshot|output|page|host|wall)$"
)
# By the virtual clock: alike from run to run but for some parts in a million.
_CLOCKED = frozenset({"step_s", "bound_s", "gap_frac"})
_CLOCKED_FRAC = 1e-4
# What real arithmetic rounds off, which differs among processors: the figure's size is compared.
_ROUNDED = frozenset({"loss_diff", "gradient_diff", "parameter_diff"})
_SHOWN = 60
_NAMES = (
    (re.compile(r"ullage-[\w.-]+-\d{8}-\d{6}(?:-\d+)?"), "ullage-NAME"),
    (re.compile(r"/tmp/[\w./-]*"), "TEMPORARY"),
    (re.compile(r"\b\d+(?:\.\d+)? s\b"), "N s"),
    (re.compile(r"torch \d+\.\d+\.\d+\S*"), "torch VERSION"),
)


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        name: the file's stem.
        words: the words after `ullage`, without --json and --python.
        needs_torch: whether --python is to be added.
    """

    name: str
    words: tuple[str, ...]
    needs_torch: bool = False

    @property
    def keeps_snapshot(self) -> bool:
        """Whether it writes one snapshot, whose name can be given."""
        is_sweep = "--sweep" in self.words or any("," in word for word in self.words)
        return self.words[0] == "run" and not is_sweep


def _run(name: str, words: str) -> Command:
    return Command(name, tuple(words.split()), needs_torch=True)


def _answer(name: str, words: str) -> Command:
    return Command(name, tuple(words.split()))


COMMANDS = (
    _run("run-gpt2", "run --gpu rtx-4090 -- examples/gpt2/train.py --batch-size 4"),
    _run("run-out-of-memory", "run --gpu rtx-3060 -- examples/gpt2/train.py --batch-size 32"),
    _run("run-phases", "run --gpu t4 -- examples/mlp_phases/train.py"),
    _run("run-lstm", "run --gpu l4 -- examples/lstm/train.py"),
    _run("run-failed", "run --gpu l4 -- tests/programs/fails.py"),
    _run(
        "run-rank",
        "run --gpu h100-80gb --world-size 8 --rank 3 -- tests/programs/distributed/fsdp2.py",
    ),
    _run("run-gpus", "run --gpu a100-40gb,l4,t4 -- examples/mlp_phases/train.py"),
    _run(
        "run-sweep",
        "run --gpu rtx-4090 --sweep batch=1,2,4 -- examples/gpt2/train.py --batch-size {batch}",
    ),
    _run("run-steps", "run --gpu l4 --steps 2 -- examples/residual_net/train.py"),
    _run("fit-as-it-is", "fit --gpu rtx-4090 -- examples/gpt2/train.py --batch-size 4"),
    _run("fit-plan", "fit --memory 5GiB -- examples/gpt2/train.py --batch-size 4"),
    _run("check", "check gpt2 mlp-phases --no-cache"),
    _run("check-serving", "check serving serving-http --no-cache"),
    _run("what-if", "what-if {roy_train256_ring} --gpu l4"),
    _answer(
        "estimate-llama",
        "estimate llama-3.1-8b --gpu h100-80gb --length 4096 --checkpointing full",
    ),
    _answer(
        "estimate-fsdp",
        "estimate llama-3.1-70b --length 4096 --data 64 --sharding fsdp --gpu h100-80gb",
    ),
    _answer(
        "estimate-tensor",
        "estimate qwen3-8b --length 8192 --tensor 4 --sequence-parallel --gpu a100-80gb",
    ),
    _answer("estimate-serve", "capacity qwen3-8b --gpu l40s --context 32768 --users 4"),
    _answer(
        "estimate-transformers",
        "capacity llama-3.1-8b --engine transformers --gpu l40s --context 8192",
    ),
    _answer("estimate-which", "estimate llama-3.1-8b --length 2048 --which-gpu"),
    _answer("estimate-largest", "estimate llama-3.1-8b --gpu h200 --length 2048 --largest batch"),
    _answer("estimate-knobs", "estimate llama-3.1-8b --gpu h100-80gb --length 2048 --full"),
    _answer(
        "estimate-optimizer",
        "estimate llama-3.1-8b --gpu h100-80gb --length 2048 --optimizer adamw-8bit",
    ),
    _answer("explain-training", "explain {roy_train256_ring}"),
    _answer("explain-oom", "explain {flexgen_oom}"),
    _answer("explain-compiled", "explain {bcrafton_compiled}"),
    _answer("explain-states", "explain {verl_state}"),
    _answer("explain-request", "explain {nothan_train} --request 1GiB"),
    _answer("diff-training", "diff {roy_train256_ring} {wed_med_train256}"),
    _answer("diff-inference", "diff {charan_small_fwd} {hanfa_small_inf512}"),
    _answer("gpus", "gpus h100-80gb"),
)


def record(command: Command, python: str, snapshots: Mapping[str, str]) -> str:
    """Runs one command; its exit code and its document without what differs from run to run."""
    verb, *rest = command.words
    options = ["--json", *(["--python", python] if command.needs_torch else [])]
    if command.keeps_snapshot:
        options += ["--snapshot", str(Path(snapshots[""]) / f"{command.name}.pickle")]
    words = [verb, *options, *(word.format_map(_Words(snapshots)) for word in rest)]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTORCH_")
    }
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *words],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    try:
        document = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise RuntimeError(f"{command.name}: no document\n{done.stderr[-2000:]}") from None
    told = {"exit_code": done.returncode, "document": _without_measured(document)}
    return json.dumps(told, indent=1, sort_keys=True) + "\n"


class _Words(dict[str, str]):
    """Names of snapshots; what stands for the program's own variables stays as it is."""

    def __missing__(self, name: str) -> str:
        return "{" + name + "}"


def _without_measured(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: "MEASURED" if _MEASURED.search(name) and not isinstance(inner, dict | list)
            else _without_measured(inner)
            for name, inner in value.items()
        }  # fmt: skip
    if isinstance(value, list):
        return [_without_measured(inner) for inner in value]
    if isinstance(value, str):
        for pattern, name in _NAMES:
            value = pattern.sub(name, value)
        return value.replace(str(ROOT), "ROOT")
    return value


def unpack_snapshots(directory: Path) -> dict[str, str]:
    """Unpacks the published recordings that commands name; name -> path, and "" -> directory."""
    names = {
        name
        for command in COMMANDS
        for word in command.words
        for name in re.findall(r"{(\w+)}", word)
        if (SNAPSHOTS / f"{name}.pickle.xz").exists()
    }
    paths = {"": str(directory)}
    for name in names:
        path = directory / f"{name}.pickle"
        path.write_bytes(lzma.decompress((SNAPSHOTS / f"{name}.pickle.xz").read_bytes()))
        paths[name] = str(path)
    return paths


def differences(name: str, text: str) -> Iterator[str]:
    """Where a document does not have what was recorded, and its fields that STRUCTURE lacks."""
    path = DIRECTORY / f"{name}.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    now = json.loads(text)
    yield from _differing(before, now, name)
    known = set(STRUCTURE.read_text().splitlines()) if STRUCTURE.exists() else set()
    yield from (f"{field}: not in {STRUCTURE.name}" for field in fields(name, now) - known)


def _differing(before: Any, now: Any, path: str) -> Iterator[str]:
    """Each value that is missing or another one; what is new in an object is not looked at."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name, value in before.items():
            if name in now:
                yield from _differing(value, now[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}: missing, expected {_short(value)}"
    elif isinstance(before, list) and isinstance(now, list):
        if len(before) != len(now):
            yield f"{path}: {len(now)} rows, expected {len(before)}"
        for row, pair in enumerate(zip(before, now, strict=False)):
            yield from _differing(*pair, f"{path}[{row}]")
    elif not _is_same(before, now, path.rpartition(".")[2].partition("[")[0]):
        yield f"{path}: {_short(now)}, expected {_short(before)}"


def _is_same(before: Any, now: Any, name: str) -> bool:
    if name in _CLOCKED and isinstance(before, float) and isinstance(now, float):
        return math.isclose(before, now, rel_tol=_CLOCKED_FRAC, abs_tol=_CLOCKED_FRAC)
    if name in _ROUNDED and before and isinstance(now, float):
        return 0.1 < now / before < 10
    return type(before) is type(now) and before == now


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."


def fields(name: str, value: Any) -> set[str]:
    """The fields of a command's document, each by its path behind the verb."""
    (verb,) = (command.words[0] for command in COMMANDS if command.name == name)
    return set(_paths(value, verb))


def _paths(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _paths(inner, f"{path}.{name}")
    elif isinstance(value, list) and value:
        for inner in value:
            yield from _paths(inner, f"{path}[]")
    else:
        yield path


def write_structure(found: set[str]) -> None:
    """Writes the fields of all recorded documents, and `found`, those that stay."""
    for command in COMMANDS:
        found |= fields(command.name, json.loads((DIRECTORY / f"{command.name}.json").read_text()))
    STRUCTURE.write_text("".join(f"{field}\n" for field in sorted(found)))


def main() -> int:
    """Records or compares; 1: something differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    chosen = [one for one in COMMANDS if not options.names or one.name in options.names]
    changed = 0
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(2) as pool:
        paths = unpack_snapshots(Path(scratch))
        python = str(Path(options.python).absolute())
        texts = pool.map(lambda one: record(one, python, paths), chosen)
        for command, text in zip(chosen, texts, strict=True):
            lines = list(differences(command.name, text))
            changed += bool(lines)
            print(f"{command.name}: {len(lines)} differences")
            if options.write:
                (DIRECTORY / f"{command.name}.json").write_text(text)
            elif lines:
                print("\n".join(lines[:40]))
    if options.write:
        # A document that was not recorded again lacks the fields that came since.
        write_structure(set(STRUCTURE.read_text().splitlines()) if options.names else set())
    return int(changed and not options.write)


if __name__ == "__main__":
    sys.exit(main())
