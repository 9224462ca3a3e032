"""The loss of a causal language model of transformers, some tokens' logits at a time.

The head hands on what it is given, and the loss is taken by torch's `linear_cross_entropy`, which
computes logits and their gradients for some tokens, and forgets them. The model returns no logits
then. A model that does something to its logits before the loss is refused, as seen by what arrives
there.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, NoReturn

from ullage.errors import PlanError
from ullage.record.module_trees import paths
from ullage.techniques.technique import Action, Place, Semantics, Setting, Technique

if TYPE_CHECKING:
    from ullage.techniques.target import Target

_LOSS = "ForCausalLMLoss"
_IGNORED = -100


def _apply(target: Target, action: Action) -> None:
    model = target.module("")
    head = _head(model)
    loss: Any = getattr(model, "loss_function", None)
    asks = "loss_function" in inspect.unwrap(type(model).forward).__code__.co_names
    if not asks or getattr(loss, "__name__", None) != _LOSS:
        _refuse(f"its forward does not take its loss by transformers' {_LOSS}")
    chunked = _ChunkedLoss(head, int(CHUNKED_LOSS.value_of(action, "num_rows")))
    target.changes.set(model, "_loss_function", chunked.loss)
    (path,) = [path for path, module in paths(model) if module is head]
    target.wrap_forward(path, chunked.pass_on)
    target.wrap_forward("", chunked.run)


def _head(model: Any) -> Any:
    import torch

    found: Any = getattr(model, "get_output_embeddings", lambda: None)()
    if type(found) is not torch.nn.Linear:
        _refuse(f"its head is {type(found).__name__}; expected a Linear of transformers")
    if hasattr(found.weight, "device_mesh"):
        _refuse("its head is sharded, and whole only while it runs")
    return found


class _ChunkedLoss:
    """What stands in for head and loss while the model runs with labels."""

    def __init__(self, head: Any, num_rows: int) -> None:
        self._head = head
        self._num_rows = num_rows
        self._is_expecting = False
        self._handed: list[tuple[Any, int]] = []

    def run(self, forward: Any, *arguments: Any, **named: Any) -> Any:
        """The model's forward."""
        from torch import is_grad_enabled

        given = inspect.signature(forward).bind_partial(*arguments, **named).arguments
        if given.get("labels") is None or not is_grad_enabled():
            return forward(*arguments, **named)
        self._is_expecting = True
        try:
            outputs = forward(*arguments, **named)
        finally:
            self._is_expecting = False
            left = len(self._handed)
            self._handed.clear()
        if left or not hasattr(outputs, "logits"):
            _refuse("its loss is not taken by its `loss_function`, from its logits as they are")
        outputs.logits = None
        return outputs

    def pass_on(self, forward: Any, hidden: Any) -> Any:
        """The head's forward."""
        if not self._is_expecting:
            return forward(hidden)
        self._handed.append((hidden, hidden._version))
        return hidden

    def loss(
        self,
        logits: Any,
        labels: Any,
        vocab_size: int,
        num_items_in_batch: Any = None,
        ignore_index: int = _IGNORED,
        **named: Any,
    ) -> Any:
        """The loss, of what the head was given in the place of logits."""
        import torch
        from torch.nn import functional

        hidden: Any
        hidden, version = self._handed.pop() if len(self._handed) == 1 else (None, 0)
        if logits is not hidden or logits._version != version:
            _refuse("it changes its logits, or takes some of them, before the loss")
        shifted = named.get("shift_labels")
        if shifted is None:
            shifted = functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        weight, bias = self._head.weight, self._head.bias
        device = hidden.device.type
        if torch.is_autocast_enabled(device):
            cast = functools.partial(torch.Tensor.to, dtype=torch.get_autocast_dtype(device))
            hidden, weight = cast(hidden), cast(weight)
            bias = None if bias is None else cast(bias)
        loss = functional.linear_cross_entropy(
            hidden.flatten(0, -2),
            weight,
            shifted.to(hidden.device).flatten(),
            linear_bias=bias,
            ignore_index=ignore_index,
            reduction="mean" if num_items_in_batch is None else "sum",
            options=torch.nn.LinearCrossEntropyOptions(batch_chunk_size=self._num_rows),
        ).float()
        return loss if num_items_in_batch is None else loss / num_items_in_batch


def _refuse(why: str) -> NoReturn:
    raise PlanError(f"'chunked_loss' does not go with this program: {why}")


CHUNKED_LOSS = Technique(
    name="chunked_loss",
    does="takes the loss of a causal model of transformers from some tokens' logits at a time",
    semantics=Semantics.SAME,
    place=Place.PROGRAM,
    reference="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.linear_cross_entropy.html",
    apply=_apply,
    settings={"num_rows": Setting(default=1024, what="tokens whose logits exist at once", least=1)},
    needs=("torch>=2.13", "transformers"),
    variants=({"num_rows": 256},),
    reorders=True,
)
