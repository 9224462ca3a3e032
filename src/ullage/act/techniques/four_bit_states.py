"""States of Adam or AdamW in four bits between steps, in torchao's format; the step computes in
float32.

Blocks of 128 values share a scale. torchao's own four-bit optimizers compile their step. Here the
program's own optimizer steps some parameters at a time, and the states are quantised some elements
at a time. States with fewer than 4,096 elements, or not a multiple of the block, are not quantised.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ullage.act.techniques.means.optimizer_parts import parameters_of
from ullage.act.techniques.means.stored_states import States, StoredStates
from ullage.act.techniques.technique import Action, Place, Semantics, Setting, Technique

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target

# The constants of torchao/optim/adam.py.
_BLOCK = 128
_LEAST_ELEMENTS = 4096
_SIGNED = {"exp_avg": True, "exp_avg_sq": False, "max_exp_avg_sq": False}
# Quantising takes some 50 bytes an element.
_AT_ONCE = _BLOCK * 2**13


def _apply(target: Target, action: Action) -> None:
    from torch.optim import Adam, AdamW

    part_bytes = int(FOUR_BIT_STATES.value_of(action, "part_mib")) * 2**20
    for optimizer in target.optimizers:
        if type(optimizer) not in {Adam, AdamW}:
            FOUR_BIT_STATES.refuse(
                f"the optimizer is {type(optimizer).__name__}; expected Adam or AdamW"
            )
        if any(hasattr(parameter, "device_mesh") for parameter in parameters_of(optimizer)):
            FOUR_BIT_STATES.refuse("its parameters are sharded")
    for optimizer in target.optimizers:
        StoredStates(optimizer, _Store(), part_bytes).apply("four_bit_states", target.changes)


class _Store:
    """States in four bits, on the device of their parameters."""

    num_ahead = 0

    def fetch(self, stored: States) -> States:
        return {
            parameter: {name: _widened(state) for name, state in of.items()}
            for parameter, of in stored.items()
        }

    def begin(self) -> None:
        """Nothing to wait for."""

    def keep(self, states: States, stored: States) -> None:
        for parameter, of in states.items():
            for name, state in of.items():
                if name in _SIGNED and _is_quantised(state):
                    quantised = stored[parameter].get(name)
                    if not hasattr(quantised, "codes"):
                        quantised = _empty_like(state, name)
                    _quantise(state, quantised)
                    stored[parameter][name] = quantised
                else:
                    stored[parameter][name] = state

    def end(self) -> None:
        """Nothing to do."""

    def settle(self) -> None:
        """Nothing to wait for."""


def _is_quantised(state: Any) -> bool:
    whole = state.numel() >= _LEAST_ELEMENTS and state.numel() % _BLOCK == 0
    return whole and state.is_contiguous() and not hasattr(state, "codes")


def _empty_like(state: Any, name: str) -> Any:
    from torchao.optim.subclass_4bit import OptimState4bit

    return OptimState4bit.zeros(state.shape, _SIGNED[name], _BLOCK, state.device, dtype=state.dtype)


def _pieces(quantised: Any) -> Iterator[tuple[slice, Any]]:
    for start in range(0, quantised.numel(), _AT_ONCE):
        elements = slice(start, min(start + _AT_ONCE, quantised.numel()))
        yield (
            elements,
            type(quantised)(
                quantised.codes[elements.start // 2 : elements.stop // 2],
                quantised.scale[elements.start // _BLOCK : elements.stop // _BLOCK],
                quantised.qmap,
                quantised.signed,
                (elements.stop - elements.start,),
                quantised.dtype,
            ),
        )


def _quantise(state: Any, quantised: Any) -> None:
    flat = state.detach().view(-1)
    for elements, piece in _pieces(quantised):
        piece.copy_(flat[elements])


def _widened(state: Any) -> Any:
    import torch

    if not hasattr(state, "codes"):
        return state
    values = torch.empty(state.shape, dtype=state.dtype, device=state.device)
    flat = values.view(-1)
    for elements, piece in _pieces(state):
        flat[elements] = piece.dequantize()
    return values


FOUR_BIT_STATES = Technique(
    name="four_bit_states",
    does="stores the states of Adam or AdamW in four bits, quantised in blocks (torchao)",
    precondition="the optimizer is Adam or AdamW",
    proof="class and settings of the optimizer are checked",
    semantics=Semantics.ROUNDING,
    place=Place.OPTIMIZER,
    reference="https://arxiv.org/abs/2309.01507",
    apply=_apply,
    settings={
        "part_mib": Setting(
            default=64, what="MiB of parameters whose states exist in float32 at once", least=1
        )
    },
    needs=("torchao",),
    excludes=(
        "optimizer_in_backward", "optimizer_offload", "bf16_states", "eight_bit_states", "shard",
        "tensor_parallel", "zero_optimizer",
    ),
)  # fmt: skip
