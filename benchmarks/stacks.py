"""Run the popular stacks of tests/programs/stacks, and write docs/results/programs.md.

    python -m benchmarks.stacks                             # environments in .envs/, all stacks
    python -m benchmarks.stacks --python env/bin/python     # environments that are there already
    python -m benchmarks.stacks --rows rows.json            # goes on where it was stopped

Each stack runs twice, in the first environment that has its packages; one that does not end, or
leaves nothing, is a row that says so. Ends with exit code 1 where one did not end as it should.
Their tests are tests/phantom/test_stacks.py.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.provenance import made_by
from benchmarks.results import publish
from ullage.ground.units import format_bytes
from ullage.players.phantom.environment import make_environment
from ullage.verbs.env.options import EnvironmentSpec

ROOT = Path(__file__).resolve().parent.parent
STACKS = ROOT / "tests" / "programs" / "stacks"
HERE = Path(__file__).parent
ENVIRONMENTS = {
    "stacks": EnvironmentSpec(requirements=(HERE / "stacks.txt",), with_triton=True),
    "stacks-vllm": EnvironmentSpec(
        torch="2.13.0", requirements=(HERE / "stacks-vllm.txt",), with_triton=True
    ),
}
GPU = "h100-80gb"
TIMEOUT_S = 1200
# What `ullage env` has put its name for only, and a stack loads: numba-cuda.
BY_NAME_ONLY = "cuda-bindings"
# A package of four files is such a name.
CODE = """
import importlib.metadata as metadata, json
whole = [d for d in metadata.distributions() if d.files and len(d.files) > 4]
print(json.dumps({d.name.replace("_", "-").lower(): d.version for d in whole}))
"""


@dataclass(frozen=True, slots=True)
class Result:
    """One stack: its entry in stacks.toml, its version and torch's, what two runs said."""

    stack: dict[str, Any]
    version: str
    documents: tuple[dict[str, Any], dict[str, Any]]
    outputs: tuple[str, str]

    @property
    def has_refused(self) -> bool:
        """Whether it ended with the reason that it was to end with."""
        reason = self.stack.get("refused")
        return reason is not None and reason in self.outputs[0]

    @property
    def is_as_expected(self) -> bool:
        """Whether it ran, twice alike, and its peak is its own; or was refused as expected."""
        if "refused" in self.stack:
            return self.has_refused
        if not all(self.stack.get("says", "") in output for output in self.outputs):
            return False
        first, second = self.documents
        is_fine = first["verdict"] == second["verdict"] == "fits" and peaks(first) == peaks(second)
        return is_fine and self.own_peak in (None, peaks(first)[0])

    @property
    def own_peak(self) -> int | None:
        """What the program printed of torch.cuda.max_memory_allocated()."""
        lines = [line for line in self.outputs[0].splitlines() if line.startswith('{"parameters"')]
        return int(json.loads(lines[-1])["peak"]) if lines else None

    @property
    def said(self) -> list[str]:
        """The line that the program was to print, if it was."""
        if "says" not in self.stack:
            return []
        lines = self.outputs[0].splitlines()
        return [line.strip() for line in lines if self.stack["says"] in line][-1:]

    def row(self) -> str:
        """A line of the table."""
        first = self.documents[0]
        torch = (first.get("torch") or "-").partition("+")[0]
        cells = [self.stack["name"], self.version, torch]
        if first["verdict"] != "fits":
            said = [line for line in self.outputs[0].splitlines() if line.startswith("ullage: ")]
            why = [*said, first.get("reason") or first["verdict"]][0]
            why = why.removeprefix("ullage: ").splitlines()[0]
            return f"| {' | '.join([*cells, *['-'] * 5])} | {why} |"
        device = max(first["devices"], key=lambda one: one["peak_allocated_bytes"])
        at_peak, peak = device["at_peak"], device["peak_allocated_bytes"]
        owned = f"{100 * (1 - at_peak['unattributed'] / peak):.1f} %" if device["steps"] else "-"
        checks = ["owners", "steps"] if device["steps"] else []
        checks += ["its own peak"] if self.own_peak == peak else []
        checks += ["twice alike"] if peaks(self.documents[0]) == peaks(self.documents[1]) else []
        checks += self.said
        return (
            f"| {' | '.join(cells)} | {format_bytes(peak, 2)} | "
            f"{format_bytes(device['peak_reserved_bytes'], 2)} | "
            f"{owned} | {len(device['steps'])} | "
            f"{first['wall_s']:.0f} | {', '.join(checks)}; {basis(first)} |"
        )


@dataclass(frozen=True, slots=True)
class Row:
    """What is kept of a stack: its name, its line of the table, whether it ended as it should."""

    name: str
    text: str
    is_as_expected: bool


def peaks(document: dict[str, Any]) -> list[int]:
    """The peaks of all devices, by which two runs are compared."""
    keys = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_requested_bytes", "num_allocs")
    return [device[key] for device in document["devices"] for key in keys]


def basis(document: dict[str, Any]) -> str:
    """What the allocator's bytes hang on: exact, or how often how much was assumed."""
    found = document["basis"]["allocator"]
    sizes = [made for made in found["assumptions"] if made["bytes"] > 2**20]
    if not sizes:
        return str(found["kind"])
    most = max(sizes, key=lambda made: made["bytes"])
    return f"{found['kind']}, most: {most['what']} {format_bytes(most['bytes'], 1)}"


def run_stack(python: Path, stack: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The run document of a stack, or one that says why there is none; and what it printed."""
    name, *flags = shlex.split(stack["run"])
    options = ("--gpu", GPU, "--python", str(python), "--json", *stack.get("options", ()))
    command = (sys.executable, "-c", "from ullage.cli import main; main()", "run")
    with tempfile.TemporaryDirectory(prefix="ullage-stacks-") as directory:
        snapshot = ("--snapshot", str(Path(directory) / "snapshot.pickle"))
        with subprocess.Popen(
            [*command, *options, *snapshot, "--", str(STACKS / name), *flags],
            cwd=directory, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                stdout, stderr = process.communicate(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.terminate()  # it ends the program with it
                process.communicate()
                return {"verdict": "failed", "reason": f"did not end within {TIMEOUT_S} s"}, ""
    if not stdout:
        return {"verdict": "failed", "reason": (stderr.splitlines() or ["no document"])[-1]}, stderr
    return json.loads(stdout), stderr


def try_stack(pythons: dict[Path, dict[str, str]], stack: dict[str, Any]) -> Row | None:
    """Runs a stack twice in the first environment that has its packages; None: there is none."""
    wanted = set(stack["packages"])
    python = next((path for path, has in pythons.items() if wanted <= has.keys()), None)
    if python is None:
        return None
    first, second = (run_stack(python, stack) for _ in range(2))
    version = pythons[python][stack["packages"][0]]
    result = Result(stack, version, (first[0], second[0]), (first[1], second[1]))
    print(result.row(), file=sys.stderr, flush=True)
    return Row(stack["name"], result.row(), result.is_as_expected)


def versions(python: Path) -> dict[str, str]:
    """The packages of an environment and their versions."""
    done = subprocess.run([str(python), "-c", CODE], check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def environments() -> list[Path]:
    """The interpreters of the environments, made where they are not there."""
    pythons = []
    for name, spec in ENVIRONMENTS.items():
        directory = ROOT / ".envs" / name
        made = make_environment(
            directory, spec, force=True, progress=lambda line: print(line, flush=True)
        )
        if BY_NAME_ONLY not in versions(made.python):
            bring = ("install", "--quiet", "--force-reinstall", "--no-deps", BY_NAME_ONLY)
            subprocess.run([str(made.python), "-m", "pip", *bring], check=True)
        pythons.append(made.python)
    return pythons


def render(results: list[Row], missing: list[str]) -> str:
    """The page."""
    columns = (
        "stack", "version", "torch", "allocated", "reserved", "owned", "steps", "s",
        "checked; basis, or why not",
    )  # fmt: skip
    rows = "\n".join(result.text for result in results)
    left_out = f"\n\nNot installed: {', '.join(missing)}." if missing else ""
    versions = " and ".join(sorted({row.text.split(" | ")[2] for row in results} - {"-"}))
    return f"""# Popular stacks on a simulated GPU

{made_by("benchmarks.stacks", torch=versions)}

Each stack is a small program of `tests/programs/stacks` that
does not use ullage, on an {GPU}, with random weights and data; training takes three steps.
*allocated* and *reserved* are the peaks of PyTorch's allocator, *owned* is the fraction of the peak
with a known owner, and *s* the seconds of the whole run with start and compilers. There are two
checks. *its own peak*: the peak equals `torch.cuda.max_memory_allocated()` in the program. *twice
alike*: a second
run has the same peaks and number of allocations. These programs are not compared with a GPU.

| {" | ".join(columns)} |
|---|---|---|--:|--:|--:|--:|--:|---|
{rows}{left_out}
"""


def main() -> None:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, action="append", help="an interpreter with stacks")
    parser.add_argument("--only", help="stacks whose name holds this, without writing the page")
    parser.add_argument(
        "--rows", type=Path, help="where rows are kept; what is fine there is not run"
    )
    args = parser.parse_args()
    # Not resolved: a virtual environment's python is a link to the one that it was made with.
    pythons = [path.absolute() for path in args.python or ()] or environments()
    packages = {python: versions(python) for python in pythons}
    stacks = tomllib.loads((STACKS / "stacks.toml").read_text(encoding="utf-8"))["stack"]
    chosen = [stack for stack in stacks if (args.only or "") in stack["name"]]
    kept = json.loads(args.rows.read_text()) if args.rows and args.rows.exists() else []
    done = {row["name"]: Row(**row) for row in kept if row["is_as_expected"]}
    missing: list[str] = []
    for stack in sorted(chosen, key=lambda stack: stack.get("nightly", False)):
        row = done.get(stack["name"]) or try_stack(packages, stack)
        if row is None:
            missing.append(stack["name"])
            continue
        done[row.name] = row
        if args.rows:
            args.rows.write_text(json.dumps([asdict(row) for row in done.values()], indent=1))
        if not args.only:
            publish("stacks", render(list(done.values()), missing))
    failed = [row.name for row in done.values() if not row.is_as_expected]
    if failed:
        raise SystemExit("not as expected:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
