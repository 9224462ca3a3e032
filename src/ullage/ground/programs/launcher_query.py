"""Runs launchers until they would start ranks, and reports the ranks that they would start.

The script runs in the program's own interpreter. torchrun and Accelerate both call the same
function of PyTorch at the end, and the environment has the ranks' variables by then.

    echo '[["accelerate", "launch", "--cpu", "train.py"]]' | python launcher_query.py
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from typing import Any, NoReturn

import torch.distributed.run as launcher


class Answered(BaseException):
    """The ranks that a launcher would start; a BaseException, so that no launcher catches it."""


def main() -> None:
    """Queries each of the commands on stdin; prints the answers in the last line."""
    launcher.run = _tell
    _lead_to_torch()
    print(json.dumps([_ask(command) for command in json.load(sys.stdin)]))


def _ask(command: list[str]) -> dict[str, Any]:
    before = dict(os.environ)
    sys.argv = command[1:] if command[0] == "-m" else command
    try:
        if command[:2] == ["-m", launcher.__name__]:
            launcher.main()  # runpy would load the module once more, and start the ranks
        elif command[0] == "-m":
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(command[0], run_name="__main__")
    except Answered as answered:
        answer: dict[str, Any] = answered.args[0]
        now = answer["variables"]
        return {**answer, "variables": {k: v for k, v in now.items() if before.get(k) != v}}
    except (Exception, SystemExit) as error:  # the launcher's own
        return {"failure": f"{type(error).__name__}: {error}"}
    finally:
        os.environ.clear()
        os.environ.update(before)
    return {"failure": "it ended by itself"}


def _tell(arguments: Any) -> NoReturn:  # noqa: ANN401 - what argparse gives
    words = [*(["-m"] if arguments.module else []), arguments.training_script]
    raise Answered(
        {
            "program": [*words, *arguments.training_script_args],
            "is_python": not arguments.no_python,
            "variables": dict(os.environ),
        }
    )


def _lead_to_torch() -> None:
    """Redirects to PyTorch's launcher where Accelerate does not use it: for a single process, and
    for DeepSpeed on several machines. The ranks get the same variables.
    """
    try:
        from accelerate.commands import launch
        from accelerate.utils.launch import prepare_simple_launcher_cmd_env
    except ImportError:
        return
    launch_deepspeed = launch.deepspeed_launcher

    def start_one(arguments: Any) -> NoReturn:  # noqa: ANN401 - likewise
        os.environ.update(prepare_simple_launcher_cmd_env(arguments)[1])
        _tell(arguments)

    def start_here(arguments: Any) -> None:  # noqa: ANN401 - likewise
        arguments.num_machines = 1
        launch_deepspeed(arguments)

    launch.simple_launcher, launch.deepspeed_launcher = start_one, start_here


if __name__ == "__main__":
    main()
