"""The cross-entropy of the output of a linear layer, with its gradients, for some rows at a time.

Logits and their gradients exist only for those rows. The loss is accumulated in float32. torch's
own `linear_cross_entropy` exists only since torch 2.13, and accumulates in bfloat16 for bfloat16
inputs, with an observed error of one percent (torch 2.15).
"""

from __future__ import annotations

from typing import Any

from ullage.act.techniques.means.known_gradients import with_gradients


def linear_cross_entropy(
    hidden_ND: Any,
    layer: Any,
    targets_N: Any,
    num_rows: int,
    *,
    dtype: Any,
    class_weights: Any = None,
    ignore_index: int = -100,
    is_mean: bool = True,
) -> Any:
    """`cross_entropy(layer(hidden), targets)` in float32, equal up to the order of sums.

    Args:
        hidden_ND: the input of the layer.
        layer: an `nn.Linear`.
        targets_N: the class of each row.
        num_rows: the number of rows whose logits exist at once.
        dtype: the dtype in which the layer multiplies, and of its logits.
        class_weights: as `weight` of `torch.nn.functional.cross_entropy`; others likewise.
    """
    import torch

    with torch.no_grad(), torch.autocast(hidden_ND.device.type, enabled=False):
        counts_N = targets_N != ignore_index
        classes_N = targets_N.where(counts_N, 0)
        wide = torch.promote_types(dtype, torch.float32)
        shares_N = counts_N.to(wide)
        if class_weights is not None:
            shares_N *= class_weights.to(wide)[classes_N]
        sums = _Sums(hidden_ND, layer, dtype, wide)
        for start in range(0, len(hidden_ND), num_rows):
            rows = slice(start, start + num_rows)
            sums.add(hidden_ND[rows], classes_N[rows], shares_N[rows], rows)
    loss = with_gradients(sums.loss, list(sums.gradients.values()), *sums.gradients)
    # Gradients of the mean would be too small for float16 until backward scales them.
    return loss / shares_N.sum() if is_mean else loss


class _Sums:
    def __init__(self, hidden: Any, layer: Any, dtype: Any, wide: Any) -> None:
        import torch

        self._hidden = hidden
        self._layer = layer
        self._dtype = dtype
        self._weight = layer.weight.to(dtype)
        self._bias = None if layer.bias is None else layer.bias.to(dtype)
        self._wide = wide
        self.loss = torch.zeros((), dtype=wide, device=hidden.device)
        leaves = (tensor for tensor in (hidden, layer.weight, layer.bias) if tensor is not None)
        self.gradients = {leaf: torch.zeros_like(leaf) for leaf in leaves if leaf.requires_grad}

    def add(self, hidden: Any, classes: Any, shares: Any, rows: slice) -> None:
        import torch
        from torch.nn import functional

        inputs = hidden.to(self._dtype)
        logits = functional.linear(inputs, self._weight, self._bias)
        logs = functional.log_softmax(logits, 1, dtype=self._wide)
        self.loss.sub_((logs.gather(1, classes[:, None]).squeeze(1) * shares).sum())
        # The gradient of the logits: their softmax, less one for the class.
        ones = torch.ones_like(shares)[:, None]
        slopes = logs.exp_().scatter_add_(1, classes[:, None], -ones)
        torch.mul(slopes, shares[:, None], out=logits)
        del logs, slopes
        self._add_gradients(logits, inputs, rows)

    def _add_gradients(self, gradient: Any, inputs: Any, rows: slice) -> None:
        layer, gradients = self._layer, self.gradients
        if self._hidden in gradients:
            gradients[self._hidden][rows] = gradient @ self._weight
        if layer.weight in gradients:
            into = gradients[layer.weight]
            if into.dtype == self._dtype:
                into.addmm_(gradient.T, inputs)
            else:
                into.add_(gradient.T @ inputs)
        if layer.bias is not None and layer.bias in gradients:
            gradients[layer.bias].add_(gradient.sum(0))
