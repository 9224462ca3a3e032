"""Runs a program of this folder under `ullage run`."""

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.folklore.section import Play, Played

HERE = Path(__file__).parent
TIMEOUT_S = 600


def run(play: Play, python: Path) -> Played:
    """What one run left. Running out of memory is an answer, failing is none.

    Raises:
        SystemExit: the program failed.
    """
    program, *words = shlex.split(play.program)
    with tempfile.TemporaryDirectory(prefix="ullage-folklore-") as directory:
        options = [*shlex.split(play.options), "--python", str(python), "--json"]
        options += ["--snapshot", str(Path(directory) / "snapshot.pickle")]
        command = (sys.executable, "-c", "from ullage.cli import main; main()", "run")
        done = subprocess.run(
            [*command, *options, "--", str(HERE / program), *words],
            cwd=directory, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
        )  # fmt: skip
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(f"{play.command} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    # With --json the program's own output is in stderr, before ours.
    text = done.stderr.partition("Wrote ")[0]
    said = [line for line in text.splitlines() if line.startswith("{")]
    return Played(json.loads(done.stdout), text, json.loads(said[-1]) if said else {})
