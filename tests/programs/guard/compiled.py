"""Trainings whose model is compiled, with errors within its graphs.

TorchDynamo and AOTAutograd compile as for any backend. The graphs of forward and backward are then
executed operation by operation, so that each can be counted, and an error raised in its place; no
code of Inductor runs. A mode of the dispatcher would keep TorchDynamo from compiling.
"""

from dataclasses import replace

import torch
from cases import CASES
from functorch.compile import make_boxed_func
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from training import ConvNet, Training


class CompiledTraining(Training):
    """A training with a compiled model; errors come in its graphs and in the optimizer."""

    has_rungs = False

    def __init__(self, case):
        super().__init__(case)
        backend = aot_autograd(fw_compiler=self.interpreted)
        self.model = torch.compile(self.model, backend=backend)

    def interpreted(self, graph, _):
        """A graph as a function that watches its operations."""
        return make_boxed_func(lambda *inputs: Watched(graph, self.faults).run(*inputs))

    def run(self, inputs, targets, *, is_last=True):
        """Forward and backward of a micro-batch, and after the last the optimizer's step."""
        return self.run_unwatched(inputs, targets, is_last=is_last)

    def run_optimizer(self):
        """Clips the gradients, and takes the optimizer's step."""
        with self.faults:
            super().run_optimizer()


class Watched(fx.Interpreter):
    """Runs a graph once, and has its operations counted."""

    def __init__(self, graph, faults):
        super().__init__(graph)
        self.faults = faults

    def call_function(self, target, args, kwargs):
        """An operation of the graph."""
        if not hasattr(self.faults, "call") or not isinstance(target, torch._ops.OpOverload):
            return super().call_function(target, args, kwargs)
        return self.faults.call(target, args, kwargs)


class PlainConvNet(ConvNet):
    """The residual network without a count of its calls, which would compile anew at each, and
    with no averages of statistics by their count, which break the graph.
    """

    def __init__(self):
        super().__init__()
        for block in self.blocks:
            block.norm2.momentum = 0.1

    def forward(self, images):
        """The logits, (batch, 5)."""
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def find_case(name):
    """A case of the sweep, as it can be compiled in one graph."""
    case = CASES[name]
    return replace(case, model=PlainConvNet) if name == "cnn" else case
