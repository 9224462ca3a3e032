"""A copy of a model on the CPU, with random weights in double precision.

The model itself is on a device that computes nothing. Its twin has the same objects, code and
shapes, except where it is made smaller: rows of large embeddings are dropped (`Rows`), as are
modules of a list beyond two that are alike (thinning.py).

    model, optimizers = make_twin(root, optimizers, dtype, Rows.of(root))
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from ullage.act.techniques.replaying.outcome import error_text
from ullage.players.inside.owners.module_trees import class_name

# Embeddings with more rows have NUM_ROWS in the twin.
_MANY_ROWS = 4096
NUM_ROWS = 1024
# The number of random numbers that are drawn; a larger tensor repeats them.
_NUM_DRAWS = 1_000_003
_NOISE = 0.1
_RATE = 1e-3


class CannotReplayError(Exception):
    """Why a twin cannot be made."""


class Rows(NamedTuple):
    """The rows that are dropped from embeddings, and from the layers that compute their logits.

    Attributes:
        sizes: the numbers of rows that become `NUM_ROWS`.
        parameters: the ids of the parameters that lose rows.
    """

    sizes: frozenset[int]
    parameters: frozenset[int]

    @classmethod
    def of(cls, root: Any) -> Rows:
        """All rows that can be dropped from a model."""
        from torch import nn

        tables = [module for module in root.modules() if isinstance(module, nn.Embedding)]
        sizes = frozenset(
            table.num_embeddings for table in tables if table.num_embeddings > _MANY_ROWS
        )
        parameters = {id(table.weight) for table in tables if table.num_embeddings in sizes}
        for module in root.modules():
            if isinstance(module, nn.Linear) and module.out_features in sizes:
                parameters |= {id(module.weight), id(module.bias)} - {id(None)}
        return cls(sizes, frozenset(parameters))

    @classmethod
    def none(cls) -> Rows:
        """No rows are dropped."""
        return cls(frozenset(), frozenset())

    def shape(self, parameter: Any) -> tuple[int, ...]:
        """The shape of a parameter in the twin."""
        shape = tuple(parameter.shape)
        return (NUM_ROWS, *shape[1:]) if id(parameter) in self.parameters else shape

    def tell(self, model: Any) -> None:
        """Updates the number of rows in attributes of the twin's modules and configurations."""
        if not self.sizes:
            return
        configs = {
            id(config): config for m in model.modules() if (config := getattr(m, "config", None))
        }
        for owner in (*model.modules(), *configs.values()):
            for name, value in list(getattr(owner, "__dict__", {}).items()):
                if type(value) is int and value in self.sizes:
                    setattr(owner, name, NUM_ROWS)
                elif name == "padding_idx" and type(value) is int and value >= NUM_ROWS:
                    owner.padding_idx = NUM_ROWS - 1


def num_elements(root: Any, rows: Rows) -> int:
    """The number of elements of all parameters of a twin."""
    import math

    return sum(math.prod(rows.shape(parameter)) for parameter in root.parameters())


def make_twin(root: Any, optimizers: list[Any], dtype: Any, rows: Rows) -> tuple[Any, list[Any]]:
    """The twin of a model and its optimizers, with the same random numbers in each call.

    Raises:
        CannotReplayError: something in the model cannot be copied.
    """
    memo: dict[int, Any] = {}
    try:
        with _tensors_become_twins(dtype, rows):
            model = copy.deepcopy(root, memo)
    except CannotReplayError:
        raise
    except Exception as error:
        raise CannotReplayError(
            f"{class_name(root)} cannot be copied ({error_text(error)})"
        ) from None
    for name, parameter in model.named_parameters():
        if not parameter.is_cpu:
            raise CannotReplayError(f"{name} is a {type(parameter).__name__}, which is not copied")
    rows.tell(model)
    twins = {id(old): memo[id(old)] for old in root.parameters() if id(old) in memo}
    return model, [_twin_of_optimizer(optimizer, twins) for optimizer in optimizers]


@contextmanager
def _tensors_become_twins(dtype: Any, rows: Rows) -> Iterator[None]:
    """Makes a deep copy of a tensor its twin, in this context."""
    import torch

    numbers = _RandomNumbers(dtype)

    def twin(tensor: Any, memo: dict[int, Any]) -> Any:
        if id(tensor) not in memo:
            memo[id(tensor)] = _twin_of_tensor(tensor, numbers, rows)
        return memo[id(tensor)]

    kinds = (torch.Tensor, torch.nn.Parameter)
    before = [kind.__dict__["__deepcopy__"] for kind in kinds]
    try:
        for kind in kinds:
            kind.__deepcopy__ = twin
        yield
    finally:
        for kind, method in zip(kinds, before, strict=True):
            kind.__deepcopy__ = method


class _RandomNumbers:
    """A source of random numbers, the same for each twin of a model."""

    def __init__(self, dtype: Any) -> None:
        import torch

        self.dtype = dtype
        self._torch = torch
        self._generator = torch.Generator().manual_seed(1)

    def normal(self, shape: tuple[int, ...]) -> Any:
        torch, size = self._torch, self._torch.Size(shape).numel()
        values = torch.empty(min(size, _NUM_DRAWS), dtype=self.dtype, device="cpu")
        values.normal_(generator=self._generator)
        if size > _NUM_DRAWS:
            values = values.repeat(-(-size // _NUM_DRAWS))[:size]
        return values.reshape(shape)


def _twin_of_tensor(tensor: Any, numbers: _RandomNumbers, rows: Rows) -> Any:
    import torch

    is_parameter = isinstance(tensor, torch.nn.Parameter)
    is_lazy = isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)
    kind = type(tensor)
    if is_lazy or getattr(kind, "__torch_dispatch__", None) is not torch.Tensor.__torch_dispatch__:
        raise CannotReplayError(f"it has a {kind.__name__}, which is not copied")
    if not is_parameter or not tensor.is_floating_point():
        twin = known_values(tensor, numbers.dtype)
        return torch.nn.Parameter(twin, tensor.requires_grad) if is_parameter else twin
    shape = rows.shape(tensor)
    twin = numbers.normal(shape).mul_(_deviation(shape))
    if len(shape) < 2:  # a norm or a bias: noise around its values
        known = known_values(tensor, numbers.dtype).nan_to_num_().clamp_(-2, 2)
        twin += known[: shape[0]] if shape else known
    return torch.nn.Parameter(twin, tensor.requires_grad)


def _deviation(shape: tuple[int, ...]) -> float:
    """The standard deviation of weights that keeps outputs about as large as inputs."""
    import math

    if len(shape) < 2 or shape[0] == 1:
        return _NOISE
    inputs = max(shape[1:]) if len(shape) == 3 else math.prod(shape[1:])
    return 1 / math.sqrt(max(inputs, 1))


def known_values(tensor: Any, dtype: Any) -> Any:
    """A tensor on the CPU with its known values; floating-point values have the twin's dtype. A
    square matrix of zeros is taken for a causal mask whose values the device has lost.
    """
    import torch

    values = tensor.detach().to("cpu", copy=True)
    if values.dim() >= 2 and values.shape[-1] == values.shape[-2] > 1 and not values.any():
        values = torch.ones_like(values).tril_()
    return values.to(dtype) if values.is_floating_point() else values


def _twin_of_optimizer(optimizer: Any, twins: Mapping[int, Any]) -> Any:
    """An optimizer of the same class and settings for the parameters of the twin, before its first
    step.
    """
    kind: Any = type(optimizer)
    twin = kind.__new__(kind)
    groups = []
    for group in optimizer.param_groups:
        settings = {name: _plain(value) for name, value in group.items() if name != "params"}
        if "lr" in settings:
            settings["lr"] = float(settings["lr"]) or _RATE  # a schedule may begin at 0
        if settings.get("capturable"):
            settings["capturable"] = False
        parameters = [
            twins[id(parameter)] for parameter in group["params"] if id(parameter) in twins
        ]
        groups.append({"params": parameters, **settings})
    own = {
        name: value
        for name, value in vars(optimizer).items()
        if value is None or isinstance(value, bool | int | float | str | tuple)
    }
    defaults = {name: _plain(value) for name, value in optimizer.defaults.items()}
    twin.__setstate__(
        {**own, "defaults": defaults, "state": defaultdict(dict), "param_groups": groups}
    )
    return twin


def _plain(value: Any) -> Any:
    """A setting of a group; a tensor becomes a number."""
    return value.detach().cpu().item() if hasattr(value, "detach") else copy.copy(value)
