"""Adam whose two states take a byte an element, as 8-bit optimizers keep them."""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BLOCK = 256  # elements that share a scale


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes 1..255 in blocks of 256, and the largest magnitude of each block."""
    blocks = F.pad(x.flatten(), (0, -x.numel() % BLOCK)).view(-1, BLOCK)
    scale = blocks.abs().amax(1, keepdim=True).clamp_(min=1e-12)
    return (blocks / scale * 127 + 128).round_().to(torch.uint8), scale


def dequantize(codes: Tensor, scale: Tensor, like: Tensor) -> Tensor:
    """The numbers behind the codes, in the shape of `like`."""
    blocks = (codes.float() - 128) / 127 * scale
    return blocks.flatten()[: like.numel()].view_as(like)


class Adam8bit(torch.optim.Optimizer):
    """Adam with block-wise quantized moments; of the second its root is kept."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One parameter after the other; a closure is not called."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, grad: Tensor, group: dict) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state["step"] = 0
            state["mean"], state["mean_scale"] = quantize(torch.zeros_like(grad))
            state["root"], state["root_scale"] = quantize(torch.zeros_like(grad))
        state["step"] += 1
        mean = dequantize(state["mean"], state["mean_scale"], grad).lerp_(grad, 1 - beta1)
        square = dequantize(state["root"], state["root_scale"], grad).square_()
        root = square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2).sqrt_()
        state["mean"], state["mean_scale"] = quantize(mean)
        state["root"], state["root_scale"] = quantize(root)
        rate = group["lr"] * (1 - beta2 ** state["step"]) ** 0.5 / (1 - beta1 ** state["step"])
        parameter.addcdiv_(mean, root.add_(group["eps"]), value=-rate)
