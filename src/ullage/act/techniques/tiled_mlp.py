"""Runs modules that treat each position independently on some positions at a time.

Each tile is checkpointed, so that the intermediate results of only one tile exist at a time, in
forward and in backward. positionwise.py proves from the module's operators, for each shape of its
inputs, that positions are independent. A module without that proof is refused.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any, NoReturn

from ullage.act.techniques.means.positionwise import POSITIONS, hooked, laid_out, why_not
from ullage.act.techniques.means.python_state import PythonState
from ullage.act.techniques.means.rerun import Rerun, checkpointed
from ullage.act.techniques.means.tiling import even_lengths
from ullage.act.techniques.technique import Action, Place, Semantics, Setting, Technique
from ullage.ground.errors import PlanError

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target

# One position cannot be distinguished from a dimension of size one.
_LEAST_POSITIONS = 2


def _apply(target: Target, action: Action) -> None:
    num_tiles = int(TILED_MLP.value_of(action, "num_tiles"))
    for path in action.modules:
        target.wrap_forward(path, _Tiles(path, num_tiles).run)


class _Tiles:
    def __init__(self, path: str, num_tiles: int) -> None:
        self._path = path
        self._num_tiles = num_tiles
        self._proved: dict[Any, PythonState] = {}

    def run(self, forward: Any, *arguments: Any, **keywords: Any) -> Any:
        """The module's forward, tile by tile."""
        import torch

        if not torch.is_grad_enabled():
            return forward(*arguments, **keywords)
        if len(arguments) != 1 or keywords or not isinstance(arguments[0], torch.Tensor):
            _refuse(self._path, "takes more than one tensor")
        (inputs,) = arguments
        if torch.compiler.is_compiling():
            _refuse(self._path, "is compiled, which hides its operators")
        if inputs.dim() < -POSITIONS:
            _refuse(self._path, f"takes {inputs.dim()} dimensions, without positions")
        total = inputs.shape[POSITIONS]
        # As even as possible, two positions at least.
        lengths = even_lengths(total, max(1, min(self._num_tiles, total // _LEAST_POSITIONS)))
        if len(lengths) < 2:
            return forward(inputs)
        self._prove(forward, inputs, lengths)

        are_contiguous = inputs.is_contiguous()

        def run(_: Any, tile: Any) -> Any:
            return forward(laid_out(tile, are_contiguous=are_contiguous))

        outputs = [
            checkpointed(Rerun(MethodType(run, forward.__self__)), (tile,), {})
            for tile in inputs.split(lengths, dim=POSITIONS)
        ]
        return torch.cat(outputs, dim=POSITIONS)

    def _prove(self, forward: Any, inputs: Any, lengths: tuple[int, ...]) -> None:
        """Raises PlanError if positions are not proved independent."""
        import torch

        device, module = inputs.device.type, forward.__self__
        casts = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
        flags = tuple(part.training for part in module.modules())
        case = (inputs.shape, inputs.stride(), inputs.dtype, inputs.device, casts, flags)
        state = self._proved.get(case)
        if state is not None and not (state.changes() or state.parts_added() or hooked(module)):
            return
        reason = why_not(forward, inputs, lengths)
        if reason:
            _refuse(self._path, reason)
        self._proved[case] = PythonState(module)


def _refuse(path: str, why: str) -> NoReturn:
    raise PlanError(f"'tiled_mlp' does not go with {path}, which {why}; take it out of the plan")


TILED_MLP = Technique(
    name="tiled_mlp",
    does="runs modules that treat positions independently on some positions at a time",
    precondition="each position depends only on itself, in forward and backward",
    proof=(
        "every operator of the forward is traced with fake tensors, for each shape of the inputs; "
        "operators that are not known to keep positions apart are refused"
    ),
    semantics=Semantics.SAME,
    place=Place.MODULES,
    reference="https://arxiv.org/abs/2506.13996",
    apply=_apply,
    settings={"num_tiles": Setting(default=8, what="number of tiles along the sequence", least=2)},
    excludes=("checkpoint", "offload_activations", "selective_checkpoint"),
    reorders=True,
)
