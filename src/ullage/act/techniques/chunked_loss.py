"""The cross-entropy of a model's head, computed for some rows at a time.

The head returns logits that are not computed yet (late_logits.py). Wherever the program takes
`torch.nn.functional.cross_entropy` of them, the loss and its gradients are computed for one block
of rows after another (linear_loss.py). A program that does something else to its logits before the
loss, such as capping them, is refused when that operation runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ullage.act.techniques.means.late_logits import Source, late_logits
from ullage.act.techniques.means.linear_loss import linear_cross_entropy
from ullage.act.techniques.means.model_head import find_head
from ullage.act.techniques.technique import Action, Place, Semantics, Setting, Technique
from ullage.players.inside.owners.module_trees import paths

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target


def _apply(target: Target, action: Action) -> None:
    head = find_head(target.model)
    if head is None:
        CHUNKED_LOSS.refuse("it has no Linear that could be its head")
    if hasattr(head.weight, "device_mesh"):
        CHUNKED_LOSS.refuse("its head is sharded, and complete only while it runs")
    (path,) = [path for path, module in paths(target.model) if module is head]
    chunked = _ChunkedLoss(int(CHUNKED_LOSS.value_of(action, "num_rows")), path)
    target.wrap_forward(path, chunked.run)
    for optimizer in target.optimizers:
        target.changes.hook(optimizer.register_step_pre_hook(chunked.check))


class _ChunkedLoss:
    """Replaces the head while the model is trained."""

    def __init__(self, num_rows: int, path: str) -> None:
        self._num_rows = num_rows
        self._path = path
        self._is_taken = False

    def run(self, forward: Any, hidden: Any) -> Any:
        import torch

        if not torch.is_grad_enabled():
            return forward(hidden)
        if torch.compiler.is_compiling():
            CHUNKED_LOSS.refuse(
                "its head is compiled; the technique needs a head that runs eagerly"
            )
        head = forward.__self__
        device = hidden.device.type
        is_cast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if is_cast else head.weight.dtype
        return late_logits(
            Source(hidden, hidden._version, hidden, head, dtype, self._take, self._refuse)
        )

    def check(self, *_: Any) -> None:
        """Raises PlanError if the optimizer steps and no loss was taken."""
        if not self._is_taken:
            self._refuse("the program does not take cross_entropy of it")

    def _take(
        self,
        hidden: Any,
        targets: Any,
        source: Source,
        *,
        weight: Any,
        ignore_index: int,
        reduction: str,
        label_smoothing: float,
        size_average: bool | None,
        reduce: bool | None,
    ) -> Any:
        is_old = size_average is not None or reduce is not None
        if is_old or label_smoothing or reduction not in {"mean", "sum"}:
            return None
        self._is_taken = True
        return linear_cross_entropy(
            hidden,
            source.head,
            targets,
            self._num_rows,
            dtype=source.dtype,
            class_weights=weight,
            ignore_index=ignore_index,
            is_mean=reduction == "mean",
        )

    def _refuse(self, why: str) -> NoReturn:
        CHUNKED_LOSS.refuse(f"of {self._path}: {why}")


CHUNKED_LOSS = Technique(
    name="chunked_loss",
    does="computes the cross-entropy of a model's head for some rows of logits at a time",
    precondition=(
        "the logits go unchanged into cross_entropy, and into nothing else that has a gradient"
    ),
    proof=(
        "every operation on the logits is intercepted, as they are not computed yet; gradients of "
        "gradients are refused"
    ),
    semantics=Semantics.SAME,
    place=Place.PROGRAM,
    reference="https://arxiv.org/abs/2410.10989",
    apply=_apply,
    settings={
        "num_rows": Setting(default=1024, what="number of rows whose logits exist at once", least=1)
    },
    variants=({"num_rows": 256},),
    reorders=True,
)
