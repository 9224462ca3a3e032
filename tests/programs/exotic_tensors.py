"""Common operations of tensors that the follower of values knows nothing of.

Prints of each what it came to: "fine", or the error that torch raises.
"""

import json
import warnings
from collections.abc import Callable

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

warnings.simplefilter("ignore")


class Sub(torch.Tensor):
    """A subclass with torch's own behaviour."""


class Wrapped(torch.Tensor):
    """A subclass that is made of another tensor."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> torch.Tensor:
        """As large as `inner`."""
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), dtype=inner.dtype, device=inner.device
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        """Does the operation to what is inside."""

        def inner(value):
            if isinstance(value, Wrapped):
                return value.inner
            return [inner(one) for one in value] if isinstance(value, (list, tuple)) else value

        result = func(*map(inner, args), **(kwargs or {}))
        return cls(result) if isinstance(result, torch.Tensor) else result


def tensors(device: str) -> dict[str, Callable[[], torch.Tensor]]:
    """One of each kind."""
    dense = torch.tensor([[0, 1, 2], [3, 0, 0]])
    return {
        "coo of bool": lambda: dense.bool().to_sparse().to(device),
        "coo of int": lambda: dense.to_sparse().to(device),
        "coo of float": lambda: dense.float().to_sparse().to(device),
        "csr": lambda: dense.to_sparse_csr().to(device),
        "csc": lambda: dense.float().to_sparse_csc().to(device),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).to(device),
        "jagged": lambda: torch.nested.nested_tensor(
            [torch.ones(2), torch.ones(3)], layout=torch.jagged
        ).to(device),
        "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 1, torch.qint8).to(
            device
        ),
        "meta": lambda: torch.ones(3, device="meta"),
        "complex": lambda: torch.ones(3, dtype=torch.complex64).to(device),
        "conjugate": lambda: torch.ones(3, dtype=torch.complex64).to(device).conj(),
        "float8": lambda: torch.ones(16).to(device).to(torch.float8_e4m3fn),
        "half": lambda: torch.ones(1, dtype=torch.float16).to(device),
        "uint16": lambda: torch.ones(3).to(torch.uint16).to(device),
        "empty": lambda: torch.ones(0, 3, dtype=torch.long).to(device),
        "subclass": lambda: torch.ones(3, dtype=torch.long).to(device).as_subclass(Sub),
        "parameter": lambda: torch.nn.Parameter(torch.ones(3).to(device)),
        "wrapped": lambda: Wrapped(torch.ones(3, dtype=torch.long).to(device)),
        "fake": lambda: FakeTensorMode().from_tensor(torch.ones(3, dtype=torch.long).to(device)),
        "buffer of Python": lambda: torch.frombuffer(bytearray(8), dtype=torch.int64).to(device),
        "expanded": lambda: torch.ones(1, dtype=torch.long).to(device).expand(4),
    }


OPERATIONS: dict[str, Callable[[torch.Tensor], object]] = {
    "cpu": lambda x: x.cpu(),
    "clone": lambda x: x.clone(),
    "to float": lambda x: x.to(torch.float32),
    "add": lambda x: x + x,
    "mul": lambda x: x * 2,
    "neg": lambda x: -x,
    "sum": lambda x: x.sum(),
    "max": lambda x: x.max(),
    "argmax": lambda x: x.argmax(),
    "eq": lambda x: x == x,
    "ge": lambda x: x >= 1,
    "isnan": lambda x: torch.isnan(x),
    "any": lambda x: (x != 0).any(),
    "item": lambda x: x.flatten()[0].item(),
    "index": lambda x: x[x > 0],
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
    "sort": lambda x: x.sort(),
    "topk": lambda x: x.topk(1),
    "zeros_like": lambda x: torch.zeros_like(x),
    "full_like": lambda x: torch.full_like(x, 2),
    "cat": lambda x: torch.cat([x, x]),
    "stack": lambda x: torch.stack([x, x]),
    "where": lambda x: torch.where(x > 0, x, x),
    "equal": lambda x: torch.equal(x, x.clone()),
    "copy_": lambda x: x.clone().copy_(x),
    "zero_": lambda x: x.clone().zero_(),
    "fill_": lambda x: x.clone().fill_(3),
    "detach": lambda x: x.detach().clone(),
    "softmax": lambda x: x.softmax(-1),
    "dense": lambda x: x.to_dense(),
    "vmap": lambda x: torch.vmap(lambda row: (row > 0).sum() + row.argmax())(x.unsqueeze(0)),
    "grad": lambda x: torch.func.grad(lambda y: (y * (y > 0)).sum())(x.float()),
}


def result(make: Callable[[], torch.Tensor], operation: Callable[[torch.Tensor], object]) -> str:
    """Fine, or the error."""
    try:
        operation(make())
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:80]
    return "fine"


if __name__ == "__main__":
    results = {
        f"{name} of {kind}": result(make, operation)
        for kind, make in tensors("cuda").items()
        for name, operation in OPERATIONS.items()
    }
    print(json.dumps(results))
