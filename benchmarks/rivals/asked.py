"""Asks one tool about workloads of benchmarks/accuracy; a line of JSON is the answer to each.

    cd benchmarks/accuracy && python ../rivals/asked.py MemTracker gpt_bf16 gpt_fp32

Runs in an environment with torch, without ullage. A workload is what it gives `train`: the model,
the maker of its batches, the loss and the optimizer, which every tool then gets in its own form.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

NUM_STEPS = 3  # the first has no optimizer states yet, the third is like all that follow
_OPTIMIZERS = {"AdamW": "adamw", "Adam": "adam", "SGD": "sgd"}


class Unasked(Exception):
    """The tool has no way to be asked about this."""


def training_of(name: str) -> dict[str, Any]:
    """What a workload gives `train`, built on the default device; Unasked: it trains otherwise."""
    sys.path.insert(0, str(Path.cwd()))
    import library_models
    import train
    import workloads

    given: dict[str, Any] = {}

    def take(model: Any, make_batch: Any, loss_of: Any, **options: Any) -> Callable[[], None]:
        given.update(model=model, make_batch=make_batch, loss_of=loss_of, **options)
        return lambda: None

    for module in (library_models, train, workloads):
        module.train = take
    workloads.WORKLOADS[name]()
    if not given:
        raise Unasked("it is not a training in the form that the tool takes")
    return given


def ask_mem_tracker(name: str) -> int:
    """torch.distributed._tools.mem_tracker, under FakeTensorMode: its docstring's example.

    On the CPU: a backward pass of fake CUDA tensors asks for a GPU.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.utils._pytree import tree_map

    with FakeTensorMode():
        given = training_of(name)
        model = given["model"].train()
        amp, known = given.get("amp"), {"model", "make_batch", "loss_of", "amp", "scaler"}
        options = {key: given[key] for key in given.keys() - known - {"optimizer", "accumulate"}}
        if not options.keys() & {"foreach", "fused"}:
            options["foreach"] = True  # the default on a GPU, and not on the CPU
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = given.get("optimizer", torch.optim.AdamW)(trained, lr=1e-4, **options)
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        accumulate = given.get("accumulate", 1)
        with tracker:
            for _ in range(NUM_STEPS):
                for _ in range(accumulate):
                    batch = tree_map(_on_cpu, given["make_batch"]())
                    with torch.autocast("cpu", amp or torch.bfloat16, enabled=amp is not None):
                        loss = given["loss_of"](model, batch) / accumulate
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                tracker.reset_mod_stats()
    return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])


def _on_cpu(value: Any) -> Any:
    return torch.empty_like(value, device="cpu") if isinstance(value, torch.Tensor) else value


def ask_accelerate(name: str) -> int:
    """The column "Training using Adam" of `accelerate estimate-memory`: the largest of its parts.

    The command itself takes names of the Hub; these are the two functions that it calls.
    """
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    with torch.device("meta"):
        given = training_of(name)
    size, _ = calculate_maximum_sizes(given["model"])
    dtype = {torch.bfloat16: "bfloat16", torch.float16: "float16"}.get(given.get("amp"), "float32")
    return int(max(estimate_training_usage(size, dtype).values()))


def ask_kitsune(name: str) -> int:
    """`kitsune.predict.predict_memory`, as `predict_hf_memory` calls it for texts."""
    from kitsune.predict import predict_memory
    from torch._subclasses.fake_tensor import FakeTensorMode

    given = training_of(name)
    optimizer = _OPTIMIZERS.get(given.get("optimizer", torch.optim.AdamW).__name__)
    if optimizer is None:
        raise Unasked("it has no such optimizer")
    with FakeTensorMode():  # a shape is all that is asked for
        batch = given["make_batch"]()
    first = batch[0] if isinstance(batch, tuple) else batch
    dtype = next(given["model"].parameters()).dtype
    answer = predict_memory(
        given["model"], tuple(first.shape[1:]), batch_size=first.shape[0], dtype=dtype,
        optimizer=optimizer, training=True,
    )  # fmt: skip
    return int(answer.total_bytes)


def ask_fakegpu(name: str) -> int:
    """PyTorch's own counter after steps of the workload, where its libraries are in the place of
    NVIDIA's (`fgpu python3 SCRIPT`).
    """
    sys.path.insert(0, str(Path.cwd()))
    import workloads

    step = workloads.WORKLOADS[name]()
    for _ in range(NUM_STEPS):
        step()
    return int(torch.cuda.max_memory_allocated())


ASK = {
    "MemTracker": ask_mem_tracker,
    "accelerate": ask_accelerate,
    "torch-kitsune": ask_kitsune,
    "FakeGPU": ask_fakegpu,
}


def main() -> None:
    """Prints each answer, or why there is none, from a fork that no other workload has used."""
    tool, *names = sys.argv[1:]
    for name in names:
        sys.stdout.flush()
        if os.fork():
            os.wait()
            continue
        try:
            answer: dict[str, Any] = {"bytes": ASK[tool](name)}
        except Exception as error:  # whatever a tool raises is its answer
            lines = str(error).splitlines() or [""]
            answer = {"why": f"{type(error).__name__}: {lines[0]}"}
        print("\n" + json.dumps({"workload": name, **answer}), flush=True)
        os._exit(0)


if __name__ == "__main__":
    main()
