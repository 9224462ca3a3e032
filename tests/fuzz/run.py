"""Fuzzes the readers of what others write, each for some time or so many inputs, from small seeds.

    python tests/fuzz/run.py --seconds 600
    python tests/fuzz/run.py --runs 1000000 --only read_pickle
    python -m tests.fuzz.run --seconds 600 --only bodies --publish

read_pickle, replay_trace, unpack_zstd: the C parts, under libFuzzer with the sanitizers of
addresses and of undefined behaviour; they need clang. read_snapshots: the whole reader in Python,
under atheris. logs, bodies, metrics, alerts, plans, configurations: those of texts, likewise.
What is found is left in the folder that is named. Exits with 1 when anything is found, and with 2
when what it takes is not there.
"""

from __future__ import annotations

import argparse
import importlib.util
import lzma
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TRACE = ROOT / "src" / "ullage" / "log" / "csrc"
MACHINE = ROOT / "src" / "ullage" / "players" / "phantom" / "csrc" / "machine"
GOLDEN = ROOT / "tests" / "golden" / "snapshots"
# Each target's C sources beside its own.
C_TARGETS = {
    "read_pickle": (TRACE / "values.c", TRACE / "pickle.c", TRACE / "columns.c"),
    "replay_trace": (TRACE / "replay.c",),
    "unpack_zstd": (MACHINE / "zstd.c", MACHINE / "entropy.c"),
}
PROCESS_RUNS = 200_000
# The readers of texts: where their seeds are, and what part of a file of Markdown is one.
TEXT_TARGETS = {
    "logs": ("tests/unit/explain/server_words/*.log", "tests/unit/explain/server_logs/*.log"),
    "bodies": ("tests/fuzz/seeds/*.body",),
    "metrics": ("tests/fuzz/seeds/*.metrics",),
    "alerts": ("docs/guide/alerts.md", "docs/reference/alerts*.md"),
    "plans": ("tests/fuzz/seeds/*.plan", "docs/reference/ladder-file.md"),
    "configurations": ("ullage.toml", "docs/reference/front.md", "docs/reference/check.md"),
}
TARGETS = (*C_TARGETS, "read_snapshots", *TEXT_TARGETS)
_FENCED = re.compile(r"```(?:toml|json)\n(.*?)```", re.DOTALL)
FLAGS = (
    "-std=c11", "-D_GNU_SOURCE=", "-g", "-O1", "-DBUFFER_BYTES=48",
    "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=undefined",
)  # fmt: skip
OPTIONS = ("-max_len=8192", "-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1")


class Outcome(NamedTuple):
    """What came of the run of a target."""

    target: str
    num_inputs: int
    seconds: int
    is_clean: bool


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"the snapshot names {module}.{name}")


def what_is_missing(target: str) -> str | None:
    """Why a target cannot be run here; None if it can."""
    if target in C_TARGETS:
        return None if shutil.which("clang") else "clang is not installed"
    found = importlib.util.find_spec("atheris")
    return None if found else "the Python package atheris is not installed"


def small_snapshots() -> Iterator[dict[str, Any]]:
    """The recordings, cut down to a few events, blocks and frames."""
    for path in sorted(GOLDEN.glob("*.pickle.xz")):
        with lzma.open(path) as file:
            raw = _PlainUnpickler(file).load()
        yield raw | {
            "segments": [
                _few_frames({**one, "blocks": list(map(_few_frames, one["blocks"][:3]))})
                for one in raw["segments"][:2]
            ],
            "device_traces": [
                [_few_frames(event) for event in events[:6]] for events in raw["device_traces"]
            ],
            "external_annotations": raw.get("external_annotations", [])[:2],
        }


def _few_frames(entry: dict[str, Any]) -> dict[str, Any]:
    return entry | {"frames": entry.get("frames", [])[:2]}


def write_seeds(folder: Path) -> Path:
    """Fills the folder with seeds; returns one snapshot as it is."""
    for number, snapshot in enumerate(small_snapshots()):
        for protocol in (2, 4):
            content = pickle.dumps(snapshot, protocol)
            (folder / f"pickle-{number}-{protocol}").write_bytes(bytes([protocol // 4]) + content)
    whole = folder.with_name("seed.pickle")
    whole.write_bytes(pickle.dumps(snapshot, 4))
    from ullage.log.compact_format.compact import _values, write_compact
    from ullage.log.compact_format.container import _PREFIX
    from ullage.log.snapshot_reader import read_snapshot

    compact = folder.with_name("seed.ullage")
    read = read_snapshot(whole)
    write_compact(read, compact)
    content = compact.read_bytes()
    length = _PREFIX.unpack(content[: _PREFIX.size])[1]
    (folder / "header").write_bytes(b"\2" + content[_PREFIX.size :][:length])
    (folder / "values").write_bytes(b"\3" + pickle.dumps(_values(read), 4))
    return whole


def write_texts(target: str, folder: Path) -> None:
    """Fills the folder with seeds of a reader of texts; of Markdown, what is in fences."""
    paths = [path for pattern in TEXT_TARGETS[target] for path in sorted(ROOT.glob(pattern))]
    for path in paths:
        text = path.read_text()
        parts = _FENCED.findall(text) if path.suffix == ".md" else [text]
        for number, part in enumerate(parts):
            (folder / f"{path.name}-{number}").write_text(part)


def write_frames(folder: Path) -> None:
    """Fills the folder with frames, each after its unpacked bytes, with which its name ends."""
    for path in (HERE / "seeds").glob("*.zst"):
        size = int(path.stem.rpartition("-")[2])
        (folder / path.name).write_bytes(size.to_bytes(2, "little") + path.read_bytes())


def build(target: str, folder: Path) -> list[str]:
    """The command of a target, built if it has to be."""
    if target in TEXT_TARGETS:
        return [sys.executable, str(HERE / "read_texts.py"), target]
    if target not in C_TARGETS:
        return [sys.executable, str(HERE / f"{target}.py")]
    program = folder / target
    sources = C_TARGETS[target]
    subprocess.run(
        ["clang", *FLAGS, f"-I{sources[0].parent}", "-o", program, HERE / f"{target}.c", *sources],
        check=True,
    )
    return [str(program)]


def fuzz(target: str, folder: Path, seconds: int, num_runs: int | None) -> Outcome:
    """Runs one target."""
    corpus = folder / f"{target}-corpus"
    corpus.mkdir(exist_ok=True)
    seed = HERE
    if target in TEXT_TARGETS:
        write_texts(target, corpus)
    elif target == "unpack_zstd":
        write_frames(corpus)
    else:
        seed = write_seeds(corpus)
    command = [*build(target, folder), str(corpus), *OPTIONS]
    command += [f"-artifact_prefix={folder}/{target}-"]
    number, started, is_clean = 0, time.monotonic(), True
    while is_clean and (num_runs is None or number < num_runs):
        left = seconds - int(time.monotonic() - started)
        if left <= 0:
            break
        # A process at a time: atheris itself takes ever more memory.
        runs = min(PROCESS_RUNS, PROCESS_RUNS if num_runs is None else num_runs - number)
        done = subprocess.run(
            [*command, f"-max_total_time={left}", f"-runs={runs}"],
            cwd=folder, env=os.environ | {"ULLAGE_FUZZ_SEED": str(seed)},
            capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
        (folder / f"{target}.log").write_text(done.stderr)
        found = re.search(r"number_of_executed_units: (\d+)", done.stderr)
        number += int(found[1]) if found else 0
        is_clean = done.returncode == 0
    seconds = round(time.monotonic() - started)
    print(f"{target}: {number} inputs in {seconds} s, {'nothing found' if is_clean else 'FOUND:'}")
    if not is_clean:
        print(done.stderr[-6000:], f"see {folder}", sep="\n")
    return Outcome(target, number, seconds, is_clean)


def publish_texts(outcomes: Sequence[Outcome], seconds: int) -> None:
    """A row for each reader of texts, of which those that did not run are as they were."""
    from benchmarks.provenance import made_by
    from benchmarks.results import publish, read_rows

    columns = ("reader", "inputs", "seconds", "day", "found in this run")
    rows = {
        row["reader"]: [row[column] for column in columns] for row in read_rows("fuzzing-texts")
    }
    for each in outcomes:
        found = "nothing" if each.is_clean else "see the log"
        day = time.strftime("%Y-%m-%d")
        rows[each.target] = [each.target, f"{each.num_inputs:,}", str(each.seconds), day, found]
    table = [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * 5, *rows.values())]
    made = made_by(f"tests.fuzz.run --seconds {seconds} --publish")
    publish("fuzzing-texts", "\n".join(("# Fuzzing the readers of texts\n", f"{made}\n", *table)))


def main() -> int:
    """Reads the arguments of the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--only", choices=TARGETS, action="append", help="(may be given twice)")
    parser.add_argument("--seconds", type=int, default=600, help="for each target")
    parser.add_argument("--runs", type=int, help="inputs for each target, at most")
    parser.add_argument("--folder", type=Path, help="for what is found, and corpora to go on from")
    parser.add_argument("--publish", action="store_true", help="in docs/results")
    arguments = parser.parse_args()
    targets = arguments.only or TARGETS
    if missing := [why for target in targets if (why := what_is_missing(target))]:
        print("; ".join(missing), file=sys.stderr)
        return 2
    folder = (arguments.folder or Path(tempfile.mkdtemp(prefix="ullage-fuzz-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    results = [fuzz(target, folder, arguments.seconds, arguments.runs) for target in targets]
    if arguments.publish:
        publish_texts(results, arguments.seconds)
    return 0 if all(each.is_clean for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
