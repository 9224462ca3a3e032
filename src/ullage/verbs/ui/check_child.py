"""Runs one check on the phantom, in a process of its own: the page stays quick meanwhile, and a
check that is not wanted any more can be ended like any program.

Reads one JSON object from stdin, and writes JSON objects to stdout, one a line: {"progress": "step
1 ..."} as steps end, and at the end {"document": ...} (the run document) or {"error": "..."}.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from ullage.ground.errors import UllageError
from ullage.ground.programs import program_path
from ullage.verbs.run.function import run

PROGRAM = program_path("published_training")


def main() -> None:
    """Runs the check that is ordered on stdin."""
    signal.signal(signal.SIGTERM, _stop)
    out = sys.stdout
    order = json.load(sys.stdin)

    def say(**message: object) -> None:
        print(json.dumps(message), file=out, flush=True)

    with tempfile.TemporaryDirectory(prefix="ullage-ui-") as scratch:
        config = Path(scratch) / "config.json"
        config.write_text(json.dumps(order["config"]), encoding="utf-8")
        try:
            result = run(
                [str(PROGRAM), str(config), json.dumps(order["recipe"])],
                gpu=order["gpu"],
                python=order["python"],
                stdout_to_stderr=True,
                on_progress=lambda line: say(progress=line),
            )
        except UllageError as error:
            say(error=str(error))
        else:
            say(document=result.document)


def _stop(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt  # what was made is removed on the way out


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
