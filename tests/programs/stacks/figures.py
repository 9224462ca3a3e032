"""What a program says of itself when it is done: what it holds, its peak, its steps."""

import json
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn


def plain_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors that hold a tensor's bytes: itself, or those within a subclass."""
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from plain_tensors(getattr(tensor, name))
    else:
        yield tensor


def bytes_on_gpu(tensors: Iterable[object]) -> int:
    """The bytes on the GPU behind tensors, what is not a tensor left out."""
    storages = {
        plain.untyped_storage().data_ptr(): plain.untyped_storage().nbytes()
        for tensor in tensors
        if isinstance(tensor, Tensor)
        for plain in plain_tensors(tensor.data)
        if plain.is_cuda
    }
    return sum(storages.values())


def print_figures(model: nn.Module, *optimizers: torch.optim.Optimizer, num_steps: int) -> None:
    """What this program holds and held, as one line of JSON."""
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    figures = {
        "parameters": bytes_on_gpu(model.parameters()),
        "optimizer_states": bytes_on_gpu(value for state in states for value in state.values()),
        "peak": torch.cuda.max_memory_allocated(),
        "steps": num_steps,
    }
    print(json.dumps(figures))
