"""A backend of torch.compile that counts what the compiled graphs compute, and how often they run.

Graphs are cut into forward and backward as for Inductor, by its partitioner and with its
decompositions; then each operation runs by itself.

    counted = Counted()
    model.compile(backend=counted.compile)
    ...
    counted.begin_step(), ..., counted.operations()
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

# They give out memory or another view of it, and launch nothing.
_FREE = ("empty", "empty_strided", "view", "_unsafe_view", "reshape", "detach", "alias")


class Counted:
    """The graphs of one program."""

    def __init__(self) -> None:
        self._graphs: list[tuple[Counter[Any], list[int]]] = []

    def compile(self, graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """The backend."""
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch.partitioners import min_cut_rematerialization_partition
        from torch._inductor.decomposition import select_decomp_table

        made = aot_autograd(
            fw_compiler=self._run_each,
            bw_compiler=self._run_each,
            decompositions=select_decomp_table,
            partition_fn=functools.partial(
                min_cut_rematerialization_partition, compiler="inductor"
            ),
        )
        return made(graph, inputs)

    @property
    def num_graphs(self) -> int:
        """How many graphs were compiled, those of forward and of backward."""
        return len(self._graphs)

    def begin_step(self) -> None:
        """Forgets how often graphs ran."""
        for _, runs in self._graphs:
            runs[0] = 0

    def operations(self) -> list[list[Any]]:
        """Since `begin_step`: [operation, precision, flops, bytes, how many of them]."""
        total: Counter[Any] = Counter()
        for rows, runs in self._graphs:
            for row, count in rows.items():
                total[row] += count * runs[0]
        return [[*row, count] for row, count in total.items() if count]

    def _run_each(self, graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        from torch._dynamo.backends.debugging import boxed_nop

        run, runs = boxed_nop(graph, inputs), [0]
        self._graphs.append((Counter(_rows(graph)), runs))

        def run_and_count(held: list[Any]) -> Any:
            runs[0] += 1
            return run(held)

        run_and_count._boxed_call = True  # type: ignore[attr-defined]
        return run_and_count


def _rows(graph: fx.GraphModule) -> Iterator[tuple[Any, ...]]:
    """Each operation of a graph, by the sizes that it was traced with."""
    for node in graph.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = node.target._schema.name
        if node.target.is_view or name.partition("::")[2] in _FREE:
            continue
        arguments = fx.map_arg(node.args, _value)
        named = fx.map_arg(node.kwargs, _value)
        read = list(_tensors((arguments, tuple(named.values()))))
        written = list(_tensors(node.meta["val"]))
        formula = flop_registry.get(node.target.overloadpacket)
        flops = formula(*arguments, **named, out_val=node.meta["val"]) if formula else 0
        moved = sum(one.numel() * one.element_size() for one in (*read, *written))
        kinds = [one.dtype for one in read if one.is_floating_point()]
        precision = str(kinds[0]).removeprefix("torch.") if kinds else "fp32"
        yield name, precision, int(flops), int(moved)


def _value(node: fx.Node) -> Any:
    return node.meta["val"]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _tensors(one)
