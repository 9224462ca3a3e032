"""Hold the peaks of a record against those that torch counts, in the popular stacks, and write
docs/results/record.md.

    python -m benchmarks.recording.stack_peaks --python .envs/stacks/bin/python
    python -m benchmarks.recording.stack_peaks --python PATH --rows rows.json   # goes on later

The GPU is the bare phantom. Ends with exit code 1 where a peak differs.
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

from benchmarks.provenance import made_by, torch_version
from benchmarks.recording.bare import GPU, watch
from benchmarks.recording.with_statistics import MARK, NAMES
from benchmarks.results import publish
from benchmarks.stacks import STACKS, versions

TIMEOUT_S = 600
WITH_STATISTICS = Path(__file__).with_name("with_statistics.py")


@dataclass(frozen=True, slots=True)
class Row:
    """A stack, its version, and the bytes: recorded and torch's own, by the names of peaks."""

    stack: str
    version: str
    recorded: dict[str, int]
    counted: dict[str, int]
    failure: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether there are figures, and all are the same."""
        return bool(self.counted) and self.recorded == self.counted

    def line(self) -> str:
        """A line of the table."""
        if self.failure:
            return f"| {self.stack} | {self.version} | - | - | - | {self.failure} |"
        cells = [
            f"{self.recorded[name]:,}"
            + ("" if self.recorded[name] == self.counted[name] else f" ({self.counted[name]:,})")
            for name in NAMES
        ]
        equal = "yes" if self.is_equal else "**no**"
        return f"| {self.stack} | {self.version} | {' | '.join(cells)} | {equal} |"


def measure(python: Path, stack: dict[str, Any], version: str) -> Row:
    """Records a stack."""
    name, *flags = shlex.split(stack["run"])
    program = [str(WITH_STATISTICS), str(STACKS / name), *flags]
    with tempfile.TemporaryDirectory(prefix="ullage-stacks-") as directory:
        try:
            done = watch("record", python, program, Path(directory), timeout_s=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            said = f"did not end within {TIMEOUT_S} s"
            return Row(stack["name"], version, {}, {}, said)
    lines = [line for line in done.output.splitlines() if line.startswith(MARK)]
    if done.exit_code or not lines:
        said = [line for line in done.output.splitlines() if line and "snapshot.pickle" not in line]
        reason = (said or ["nothing was said"])[-1]
        return Row(stack["name"], version, {}, {}, f"failed: {reason}")
    counted = json.loads(lines[-1].removeprefix(MARK))[0]
    device = done.document["devices"][0]
    recorded = {name: device[f"peak_{name}_bytes"] for name in NAMES}
    return Row(stack["name"], version, recorded, counted)


def read_rows(path: Path | None) -> dict[str, Row]:
    """The rows of an earlier, unfinished call, by their stacks."""
    if path is None or not path.exists():
        return {}
    return {fields["stack"]: Row(**fields) for fields in json.loads(path.read_text())}


def left_out(stack: dict[str, Any], installed: dict[str, str]) -> str | None:
    """Why a stack is not measured; None: it is."""
    missing = sorted(set(stack["packages"]) - installed.keys())
    if missing:
        return f"not installed: {', '.join(missing)}"
    if "refused" in stack:
        return "does not run on the phantom"
    return "is one rank of a job, which only `ullage run` makes up" if "options" in stack else None


def page(rows: list[Row], others: list[str], torch: str) -> str:
    """The page."""
    return "\n".join(
        [
            "# The peaks of a record in popular stacks",
            "",
            made_by("benchmarks.recording.stack_peaks --python ENV/bin/python", torch=torch),
            "",
            "Each of the [popular stacks](programs.md#popular-stacks-on-a-simulated-gpu)",
            "that the environment has, under `ullage record` in the mode *full*, with the bare",
            f"phantom as an {GPU}. After the program the same",
            "process asks `torch.cuda.memory_stats()` for its peaks; they are in brackets where",
            "they differ from the record's. Bytes.",
            "",
            "| stack | version | requested | allocated | reserved | equal |",
            "|---|---|--:|--:|--:|---|",
            *[row.line() for row in rows],
            "",
            "Not measured:",
            "",
            *[f"- {line}" for line in others],
            "",
        ]
    )


def main() -> int:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--python", type=Path, required=True, metavar="PATH")
    parser.add_argument("--only", default="", help="stacks whose name holds this; no page")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="keeps what was measured")
    options = parser.parse_args()
    python = options.python.absolute()
    installed = versions(python) | {"torch": torch_version(python)}
    stacks = tomllib.loads((STACKS / "stacks.toml").read_text(encoding="utf-8"))["stack"]
    earlier = read_rows(options.rows)
    rows, others = [], []
    for stack in stacks:
        if options.only not in stack["name"]:
            continue
        reason = left_out(stack, installed)
        if reason is not None:
            others.append(f"{stack['name']}: {reason}")
            continue
        version = installed[stack["packages"][0]]
        row = earlier.get(stack["name"])
        if row is None or row.version != version:
            row = measure(python, stack, version)
            print(row.line(), flush=True)
        rows.append(row)
        earlier[row.stack] = row
        if options.rows is not None:
            saved = [asdict(each) for each in earlier.values()]
            options.rows.write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
    if not options.only:
        publish("record-stacks", page(rows, others, torch_version(python)))
    return 0 if all(row.is_equal for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
