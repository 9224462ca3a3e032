"""Runs closed_loops.py on the phantom: many loads of one start of a server.

result = run_on_phantom(python, config, arguments, loops, host=MEASURED)
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ullage.operate.serve.host_time import HostTime

__all__ = ["ULLAGE", "run_on_phantom"]

_PROGRAM: Final = Path(__file__).resolve().parent / "closed_loops.py"
ULLAGE: Final = (sys.executable, "-c", "from ullage.cli import main; main()")


def run_on_phantom(
    python: str,
    gpu: str,
    config: Mapping[str, Any],
    arguments: Sequence[str],
    loops: Sequence[Mapping[str, Any]],
    host: HostTime,
    *,
    ranks: int = 1,
) -> dict[str, Any]:
    """Starts a server, and sends it the loads of closed_loops.py.

    Args:
        python: the interpreter of an environment with vLLM.
        config: the fields of the model's config.json.
        arguments: words of vllm serve after the model.

    Raises:
        SystemExit: it came to no result; its own output says why.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
        words = [name, *arguments]
        if ranks > 1:
            words += ["--tensor-parallel-size", str(ranks)]
        task = {
            "arguments": words, "config": str(folder / "config.json"), "gpu": gpu, "loops": loops,
            "host": host,
        }  # fmt: skip
        (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
        (folder / "ullage.toml").write_text("[run]\nvalues = false\n", encoding="utf-8")
        result = folder / "result.json"
        subprocess.run(
            [
                *ULLAGE, "run", "--gpu", gpu, "--python", python, "--clock", "virtual",
                "--world-size", str(ranks), "--rank", "0",
                "--snapshot", str(folder / "loops.pickle"),
                "--", str(_PROGRAM), str(folder / "task.json"), str(result),
            ],
            check=False, cwd=folder,
        )  # fmt: skip
        if not result.is_file():
            raise SystemExit(f"{' '.join(arguments)}: no result, see the output above")
        document: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return document
