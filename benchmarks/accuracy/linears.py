"""Linear layers that take the place of nn.Linear: in float8, and with low-rank adapters."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def to_float8(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x in float8 by one scale, and the float32 scale that undoes it."""
    highest = torch.finfo(dtype).max
    scale = highest / x.abs().amax().float().clamp(min=1e-12)
    return (x * scale).clamp(-highest, highest).to(dtype), scale.reciprocal()


def scaled_mm(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    """a (M, K) row by row times b (K, N) column by column, in bfloat16."""
    return torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16)


class _Float8Product(torch.autograd.Function):
    """x @ w.T; all three products of training in float8."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, w: Tensor) -> Tensor:
        (x8, scale_x), (w8, scale_w) = to_float8(x, E4M3), to_float8(w, E4M3)
        ctx.save_for_backward(x8, w8, scale_x, scale_w)
        return scaled_mm(x8, w8.t(), scale_x, scale_w)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x8, w8, scale_x, scale_w = ctx.saved_tensors
        grad, scale = to_float8(grads[0], E5M2)
        grad_x = scaled_mm(grad, w8.t().contiguous().t(), scale, scale_w)
        grad_w = scaled_mm(grad.t().contiguous(), x8.t().contiguous().t(), scale, scale_x)
        return grad_x, grad_w


class Float8Linear(nn.Linear):
    """A bfloat16 linear layer whose products run in float8."""

    def forward(self, x: Tensor) -> Tensor:
        """x is (..., in); the result (..., out)."""
        y = _Float8Product.apply(x.reshape(-1, self.in_features), self.weight)
        return y.view(*x.shape[:-1], self.out_features) + self.bias


class LoRALinear(nn.Module):
    """A frozen linear layer and a trained adapter of low rank."""

    def __init__(self, base: nn.Linear, rank: int = 16) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """x is (..., in); the result (..., out)."""
        return self.base(x) + self.up(self.down(F.dropout(x, 0.05, self.training)))


def float8(linear: nn.Linear) -> nn.Module:
    """The same layer in float8, with weights of its own."""
    return Float8Linear(linear.in_features, linear.out_features)


def swap_linears(model: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> None:
    """Put make(layer) in the place of every linear layer of `model`."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, make(child))
