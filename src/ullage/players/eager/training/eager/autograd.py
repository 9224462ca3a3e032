"""The graph that a forward pass leaves, and the backward pass over it.

The rules are those of PyTorch's engine (torch/csrc/autograd/engine.cpp, input_buffer.cpp,
accumulate_grad.cpp): the newest node runs first, what it saved is freed after it has run,
gradients that meet are added in place where nothing else refers to the first, and a leaf's first
gradient is taken unchanged.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, TypeAlias

from ullage.log.category import Category
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.kernels import Kind, launch
from ullage.players.eager.training.eager.tensor import DType, Tensor

Gradients: TypeAlias = Sequence[Tensor | None]
# Gets the gradient of the output and what was saved; gives one for each input.
Backward: TypeAlias = Callable[[Tensor, Sequence[Tensor]], Gradients]
# getrefcount counts its own argument and the variable that is looked at.
_ONLY_HERE: Final = 2


class Node:
    """One operation in the graph.

    Attributes:
        inputs: for each input its node, the leaf itself, or None where it gets no gradient.
        saved: what backward needs; empty after it has run.
        rule: computes the inputs' gradients.
        number: rank in the order in which nodes were made.
        frame: the checkpoint in which it was made: backward recomputes what it saved.
        place: its number in that frame.
        gathered: gradients of the outputs, for an operation with several; None where it has one.
        scope: the module in which it was made.
    """

    __slots__ = ("frame", "gathered", "inputs", "number", "place", "rule", "saved", "scope")

    def __init__(
        self, inputs: list[Node | Tensor | None], rule: Backward, number: int, scope: int
    ) -> None:
        self.inputs = inputs
        self.rule = rule
        self.saved: list[Tensor] = []
        self.number = number
        self.frame: _Frame | None = None
        self.place = 0
        self.gathered: list[Tensor] | None = None
        self.scope = scope


class _EarlyStop(Exception):
    """All that a recomputation was for is there."""


class _Frame:
    """A checkpointed call: how to make what it saved again."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function = function
        self.arguments = arguments
        self.kept: list[Tensor] = []  # by selective checkpointing, in the order of their making
        self.autocast: DType | None = None
        self.num_saved = 0
        self.num_nodes = 0
        self.saved: list[list[Tensor]] | None = None
        self.num_made = 0
        self.num_products = 0

    def keep(self, node: Node, tensors: Sequence[Tensor]) -> None:
        """Notes what a node would save; while it is made again, keeps it."""
        if self.saved is None:
            if node.frame is None:
                node.frame, node.place = self, self.num_nodes
                self.num_nodes += 1
            self.num_saved += len(tensors)
            return
        if not node.saved:
            self.saved.append([])
        copies = [tensor.detach() for tensor in tensors]
        self.saved[-1].extend(copies)
        node.saved.extend(copies)  # as long as something refers to the graph that is made again
        self.num_made += len(tensors)
        if self.num_made == self.num_saved:
            raise _EarlyStop


class _State:
    """The state of autograd, one for each arena, so that models do not share it."""

    __slots__ = ("frames", "fresh", "number")

    def __init__(self) -> None:
        self.number = 0
        self.fresh: list[Tensor] = []  # leaves that had no gradient before this pass
        self.frames: list[_Frame] = []


def _state_of(tensor: Tensor) -> _State:
    states = tensor.storage.arena.__dict__
    state = states.get("autograd")
    if state is None:
        state = states["autograd"] = _State()
    return state


def record(inputs: Sequence[Tensor | None], rule: Backward, *saved: Tensor) -> Node | None:
    """The node of an operation that begins; None where no gradient is needed.

    What it saves of its inputs is named here, before the output has memory: a checkpoint that is
    made again ends at the last thing that is needed.
    """
    arena = _arena_of(inputs)
    arena.operator = getattr(rule, "__code__", None)
    if arena.recorder is not None:
        arena.recorder.begin(inputs)
    edges: list[Node | Tensor | None] = [
        None if tensor is None or not tensor.needs_grad else tensor.node or tensor
        for tensor in inputs
    ]
    if not any(edges):
        return None
    if not arena.is_recording:
        return None
    state = _state_of(next(tensor for tensor in inputs if tensor is not None))
    state.number += 1
    node = Node(edges, rule, state.number, arena.scope)
    if saved:
        keep(node, *saved)
    return node


def _arena_of(inputs: Sequence[Tensor | None]) -> Arena:
    return next(tensor for tensor in inputs if tensor is not None).storage.arena


def keep(node: Node, *tensors: Tensor) -> None:
    """Saves tensors for backward: as PyTorch does, without the graph behind them."""
    if not tensors:
        return
    frames = _state_of(tensors[0]).frames
    if frames:
        frames[-1].keep(node, tensors)
    else:
        node.saved.extend(tensor.detach() for tensor in tensors)


def connect(output: Tensor, node: Node | None) -> Tensor:
    """The output of an operation, as a part of the graph."""
    if node is not None:
        output.node = node
        output.needs_grad = True
    return output


def checkpoint(function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
    """torch.utils.checkpoint with use_reentrant=False: nothing that the function saves is kept;
    backward calls it again, up to the last thing that it saved.
    """
    first = next(argument for argument in arguments if isinstance(argument, Tensor))
    if not first.arena.is_recording:
        return function(*arguments)
    # What layers pass on in one object is an argument of each: the frame keeps it as it is now.
    own = [each.passed() if hasattr(each, "passed") else each for each in arguments]
    frame = _Frame(function, tuple(own))
    frame.autocast = first.arena.autocast
    frames = _state_of(first).frames
    frames.append(frame)
    try:
        return function(*arguments)
    finally:
        frames.pop()


class Product(Enum):
    """Which operator of PyTorch multiplies matrices."""

    MM = "aten.mm"
    ADDMM = "aten.addmm"
    BMM = "aten.bmm"
    BADDBMM = "aten.baddbmm"  # which the list of create_selective_checkpoint_contexts has not


def remember(make: Callable[[], Tensor], arena: Arena, product: Product | None = None) -> Tensor:
    """The output of an operation that selective checkpointing keeps: it is made once, and taken
    from there when the function is called again.

    That is what torch.utils.checkpoint.create_selective_checkpoint_contexts does with the
    operators on its list; here aten.mm, addmm, bmm and all of _scaled_dot_product_*. Where every
    second product is kept, it is of aten.mm alone, as in torchtitan's list.

    product: what the operator is; None: none that multiplies matrices.
    """
    state: _State | None = arena.__dict__.get("autograd")
    is_listed = arena.is_selective and product is not Product.BADDBMM
    if not is_listed or state is None or not state.frames:
        return make()
    frame = state.frames[-1]
    if product is not None and arena.keeps_alternate:
        if product is not Product.MM:
            return make()
        frame.num_products += 1
        if frame.num_products % 2 == 0:
            return make()
    if frame.saved is not None:
        return frame.kept.pop(0)
    out = make()
    frame.kept.append(out.detach())
    return out


class _Remade(list[Tensor]):
    """A checkpoint's recomputed tensors: only the node's function refers to it."""


def drop_remade(saved: Sequence[Tensor]) -> None:
    """Frees what a checkpoint recomputed. The engine sums a gradient to its input's shape when
    the function has freed its own tensors; what a node saved itself is freed after that.
    """
    if isinstance(saved, _Remade):
        saved.clear()


def _saved_of(node: Node) -> list[Tensor]:
    """The tensors that a node saved; makes a checkpoint's again where that has not been done."""
    frame = node.frame
    if frame is None:
        return node.saved
    if frame.saved is None:
        _recompute(frame)
    if frame.saved is None or node.place >= len(frame.saved):
        return []
    taken, frame.saved[node.place] = frame.saved[node.place], []
    return _Remade(taken)


def _recompute(frame: _Frame) -> None:
    arguments = frame.arguments  # which stay as long as the frame (_NoopSaveInputs)
    frame.saved = []
    frame.num_products = 0
    if not frame.num_saved:
        return
    first = next(argument for argument in arguments if isinstance(argument, Tensor))
    state = _state_of(first)
    outer, state.frames = state.frames, [frame]
    detached = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            inside = argument.detach()
            inside.needs_grad, inside.node = argument.needs_grad, argument.node
            detached.append(inside)
        else:
            detached.append(argument)
    log = first.arena.log
    begin = log.position
    try:
        with first.arena.recording(), first.arena.autocasting(frame.autocast):
            frame.function(*detached)
    except _EarlyStop:
        pass
    finally:
        state.frames = outer
    events = log.events[begin:]
    freed = {~event for event in events if event < 0}
    for index in events:  # what is left of it is what forward would have kept
        if index >= 0 and index not in freed and log.categories[index] is None:
            log.categories[index] = Category.ACTIVATION


def backward(root: Tensor, gradient: Tensor | None = None) -> None:
    """Runs the graph behind a tensor; leaves get their gradients."""
    if root.node is None:
        return
    waiting = _count_edges(root.node)
    gradient = root.like() if gradient is None else gradient  # torch.autograd.backward holds it
    buffers: dict[Node, Tensor] = {root.node: gradient}
    ready = [(-root.node.number, root.node)]
    with root.arena.recording(is_on=False):
        while ready:
            _, node = heapq.heappop(ready)
            if node in buffers:
                _run(node, buffers)
            for edge in node.inputs:
                if isinstance(edge, Node):
                    waiting[edge.number] -= 1
                    if not waiting[edge.number]:
                        heapq.heappush(ready, (-edge.number, edge))
            node.inputs = []
    fresh = _state_of(root).fresh
    for leaf in fresh:
        if leaf.grad is not None:
            leaf.grad.is_view = False
    fresh.clear()


def _count_edges(root: Node) -> dict[int, int]:
    """How many gradients each node of the graph waits for, by its number; one that ran is freed."""
    counts: dict[int, int] = {}
    stack = [root]
    while stack:
        for edge in stack.pop().inputs:
            if isinstance(edge, Node):
                number = edge.number
                if number not in counts:
                    counts[number] = 0
                    stack.append(edge)
                counts[number] += 1
    return counts


def _run(node: Node, buffers: dict[Node, Tensor]) -> None:
    """Runs one node: its rule, then what it saved is freed, then its gradients are passed on."""
    saved = _saved_of(node)
    arrived = buffers.pop(node)
    arena = arrived.storage.arena
    arena.scope, arena.operator = node.scope, getattr(node.rule, "__code__", None)
    recorder = arena.recorder
    if recorder is not None:
        recorder.begin_backward(arrived, saved)
    gradients = list(node.rule(arrived, saved))
    node.gathered = None
    del arrived
    saved.clear()
    node.frame = None
    del saved
    edges = node.inputs
    for place in range(len(gradients)):
        gradient, gradients[place] = gradients[place], None
        edge = edges[place]
        if gradient is None or edge is None:
            continue
        if isinstance(edge, Tensor):
            _accumulate(edge, gradient)
        elif edge.gathered is not None:
            edge.gathered.append(gradient)
            buffers[edge] = gradient
        elif edge in buffers:
            total = buffers.pop(edge)
            is_alone = (
                sys.getrefcount(total) == _ONLY_HERE
                and sys.getrefcount(total.storage) == _ONLY_HERE
                and total.is_whole
                and not total.is_view
            )
            buffers[edge] = total if is_alone else total.like()
            if recorder is not None:
                recorder.launch(Kind.POINTWISE, buffers[edge], (total, gradient))
            del total
        else:
            buffers[edge] = gradient
        del gradient


def _accumulate(leaf: Tensor, gradient: Tensor) -> None:
    """A leaf takes its first gradient where nothing else refers to it; later ones are added."""
    if leaf.grad is None:
        is_alone = (
            sys.getrefcount(gradient) <= _ONLY_HERE + 1
            and sys.getrefcount(gradient.storage) == _ONLY_HERE
            and gradient.is_whole
            and not gradient.is_permuted  # it is to be laid out like the leaf
        )
        leaf.grad = gradient if is_alone else gradient.like(gradient.shape)
        leaf.grad.is_view = gradient.is_view
        if not is_alone:
            launch(Kind.STRIDED, leaf.grad, gradient)
        if leaf.storage.category is not None:  # not an activation that was made a leaf
            leaf.grad.storage.own(Category.GRADIENT, leaf.storage)
        _state_of(leaf).fresh.append(leaf)
    elif leaf.grad.is_view:  # from another use of the leaf in this pass: see can_accumulate_inplace
        leaf.grad = leaf.grad.like(leaf.shape)
        if leaf.storage.category is not None:  # not an activation that was made a leaf
            leaf.grad.storage.own(Category.GRADIENT, leaf.storage)
        launch(Kind.POINTWISE, leaf.grad, leaf.grad, gradient)
    else:
        launch(Kind.POINTWISE, leaf.grad, leaf.grad, gradient)
    recorder = leaf.arena.recorder
    if recorder is not None:
        recorder.ready(leaf)
    steps_with = leaf.arena.steps_with
    if steps_with is not None:
        steps_with(leaf)
        leaf.grad = None
