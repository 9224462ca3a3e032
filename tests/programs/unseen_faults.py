"""Programs in which code of ullage's, or the program's own, raises: `unseen_faults.py CASE`."""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import torch


def failing_hooks() -> Any:
    """Everything of ullage's that a step calls raises; the program trains as it would alone."""
    from ullage.players.inside.owners.modules import Modules
    from ullage.players.inside.owners.ownership import Claims
    from ullage.players.inside.steps.steps import Steps
    from ullage.players.inside.values.cpu_ops import Beside

    def fail(*_arguments: Any, **_named: Any) -> None:
        raise ValueError("on purpose")

    for kind, names in (
        (Claims, ("claim_module", "claim_gradients", "claim_optimizer")),
        (Modules, ("enter",)),
        (Steps, ("see_backward", "end_backward")),
        (Beside, ("read_inputs",)),
    ):
        for name in names:
            setattr(kind, name, fail)
    layer = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.Adam(layer.parameters())
    for _ in range(2):
        layer(torch.ones(2, 8, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [list(layer.weight.shape), torch.ones(4, device="cuda").sum().item()]


def failing_step() -> Any:
    """Optimizers that raise in their steps, in turn; values and steps go on."""
    weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
    optimizer = torch.optim.Adam([weight])
    errors = 0
    for attempt in range(5):
        gradient = torch.ones(4, device="cuda")
        weight.grad = gradient.to_sparse() if attempt == 1 else gradient
        try:
            optimizer.step()
        except RuntimeError:
            errors += 1
    return [errors, torch.ones(4, device="cuda").sum().item()]


def broken_graph() -> Any:
    """What Dynamo gives back to Python after a break: the last line reads a value of the device."""

    def rest(x: torch.Tensor) -> torch.Tensor:
        y = x * 20
        torch._dynamo.graph_break()
        first = torch.tensor(2, device="cuda")
        return y[first:]

    return list(torch.compile(rest, backend="eager")(torch.rand(8, device="cuda")).shape)


def own_allocator() -> Any:
    """An allocator of the program's own, which keeps no statistics."""
    runtime = ctypes.CDLL(None)
    sizes = []

    def allocate(size: int, _device: int, _stream: int) -> int:
        pointer = ctypes.c_void_p()
        runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))
        sizes.append(size)
        return pointer.value or 0

    def free(pointer: int, _size: int, _device: int, _stream: int) -> None:
        runtime.cudaFree(ctypes.c_void_p(pointer))

    word = ctypes.c_void_p
    functions = (
        ctypes.CFUNCTYPE(word, ctypes.c_size_t, ctypes.c_int, word)(allocate),
        ctypes.CFUNCTYPE(None, word, ctypes.c_size_t, ctypes.c_int, word)(free),
    )
    pointers = [ctypes.cast(function, word).value for function in functions]
    own = torch._C._cuda_customAllocator(*pointers)
    torch.cuda.memory.change_current_allocator(torch.cuda.memory._CUDAAllocator(own))
    layer = torch.nn.Linear(1024, 1024, device="cuda")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(2):
        layer(torch.ones(4, 1024, device="cuda")).sum().backward()
        optimizer.step()
    torch.cuda.synchronize()
    return [max(sizes), functions is not None]


def swapped() -> Any:
    """Parameters that are swapped where a module is converted, which no weak reference may see."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    layer = torch.nn.Linear(256, 256).cuda()
    layer(torch.ones(4, 256, device="cuda")).sum().backward()
    layer.zero_grad()
    layer.half()
    return [str(layer.weight.dtype), list(layer.to(torch.float64).weight.shape)]


def jagged() -> Any:
    """Nested tensors of the jagged layout through a layer."""
    parts = [torch.rand(3, 8, device="cuda"), torch.rand(5, 8, device="cuda")]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    layer = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU()).cuda()
    output = layer(nested)
    output.values().sum().backward()
    return [list(output.values().shape), list(layer[0].weight.grad.shape)]


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
