"""Runs a training script as it is, and writes what its steps took and how much memory it used.

    measured.py RESULT [--instead NAME] SCRIPT WORDS...

The script prints a line "... 41.3 ms" for each step when the device has done it. `--instead` has
something other than a plan of ullage save memory, put around the script's model GPT: "save_on_cpu"
(torch.autograd.graph), "trl" and "torchtune" (their OffloadActivations, read from the installed
packages), "compiled" (torch.compile), "budget=0.5" (the same under that activation_memory_budget).
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import io
import json
import logging
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

_STEP = re.compile(r"([\d.]+) ms$")


class Lines(io.TextIOBase):
    """A stdout that notes the milliseconds which lines end in."""

    def __init__(self, shown: Any) -> None:
        self.steps_ms: list[float] = []
        self._shown = shown

    def write(self, text: str) -> int:
        """Shows it, and takes the time of a step from it."""
        found = _STEP.search(text.strip())
        if found is not None:
            self.steps_ms.append(float(found[1]))
        return int(self._shown.write(text))

    def flush(self) -> None:
        """Shows what is held back."""
        self._shown.flush()


def write(result: Path, lines: Lines) -> None:
    """What the process took; of the device, with what is not torch's at its end."""
    if not lines.steps_ms:
        return
    memory = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    reserved = memory["reserved_bytes.all.peak"]
    outside = total - free - memory["reserved_bytes.all.current"]
    document = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "steps_ms": lines.steps_ms,
        "peak_allocated_bytes": memory["allocated_bytes.all.peak"],
        "peak_reserved_bytes": reserved,
        "peak_used_bytes": reserved + outside,
        "num_alloc_retries": memory["num_alloc_retries"],
        "total_bytes": total,
    }
    result.write_text(json.dumps(document), encoding="utf-8")


def load(path: Path, name: str) -> Any:
    """A module from its file."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module of Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def file_of(package: str, *parts: str) -> Path:
    """A file of an installed package, which is not imported for it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"{package} is not installed here")
    return Path(spec.submodule_search_locations[0], *parts)


def make_trl(model: Any) -> Any:
    """TRL's context, which its trainer has around forward and backward."""
    module = load(file_of("trl", "models", "activation_offloading.py"), "trl_offloading")
    return module.get_act_offloading_ctx_manager(model)


def make_torchtune(model: Any) -> Any:
    """torchtune's context, which its recipes have around forward. Of what its file imports only to
    ask what a tensor or module is, empty classes stand in.
    """
    stand_ins: dict[str, dict[str, Any]] = {
        "torchao": {},
        "torchao.dtypes": {},
        "torchao.dtypes.nf4tensor": {"NF4Tensor": type("NF4Tensor", (), {})},
        "torchtune": {},
        "torchtune.modules": {"TiedLinear": type("TiedLinear", (), {})},
        "torchtune.utils": {"get_logger": logging.getLogger},
    }
    path = file_of("torchtune", "training", "_activation_offloading.py")
    for name, held in stand_ins.items():
        module = types.ModuleType(name)
        module.__dict__.update(held)
        sys.modules[name] = module
    found = load(path, "torchtune_offloading")
    return found.get_act_offloading_ctx_manager(model, enable_activation_offloading=True)


def put_around(script: Any, make: Callable[[Any], Any], *, has_backward: bool) -> None:
    """Has a context around the forward of the script's model, and around its backward if asked."""
    forward, open_now = script.GPT.forward, contextlib.ExitStack()
    made: list[Any] = []

    def run(model: Any, *inputs: Any) -> Any:
        if not made:
            made.append(make(model))
        open_now.enter_context(made[0])
        try:
            return forward(model, *inputs)
        finally:
            if not has_backward:
                open_now.close()

    script.GPT.forward = run
    register_optimizer_step_pre_hook(lambda *_: open_now.close())


def put_instead(script: Any, name: str) -> None:
    """Sets up what is to save memory."""
    if name == "trl":
        put_around(script, make_trl, has_backward=True)
    elif name == "torchtune":
        put_around(script, make_torchtune, has_backward=False)
    elif name == "save_on_cpu":
        hooks = torch.autograd.graph.save_on_cpu
        put_around(script, lambda _model: hooks(pin_memory=True), has_backward=False)
    else:
        if name != "compiled":
            import torch._functorch.config as config

            config.activation_memory_budget = float(name.removeprefix("budget="))
        make = script.GPT
        script.GPT = lambda **sizes: torch.compile(make(**sizes))


def main(result: str, *words: str) -> None:
    """Runs the script."""
    lines = Lines(sys.stdout)
    atexit.register(write, Path(result), lines)
    instead = ""
    if words[0] == "--instead":
        instead, words = words[1], words[2:]
    sys.argv = list(words)
    script = load(Path(words[0]), "script")
    if instead:
        put_instead(script, instead)
    with contextlib.redirect_stdout(lines):
        script.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
