"""The root-mean-square norms of language models; each casts at another place."""

from __future__ import annotations

from collections.abc import Sequence

from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.autograd import Gradients, connect, keep, record
from ullage.players.eager.training.eager.kernels import Kind, launch
from ullage.players.eager.training.eager.module import Module, parameter
from ullage.players.eager.training.eager.tensor import FLOAT32, DType, Tensor


class Norm(Module):
    """A weight for each element of the last dimension."""

    def __init__(self, arena: Arena, width: int, dtype: DType) -> None:
        self.weight = parameter(arena, width, dtype=dtype)

    def __call__(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class RMSNorm(Norm):
    """LlamaRMSNorm: in float32; the weight multiplies what is cast back."""

    def __call__(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = F.to(x, FLOAT32)
        variance = F.mean(F.pow2(x))
        x = F.mul(x, F.rsqrt(F.shift(variance)))
        return self.weigh(x, dtype)

    def weigh(self, x: Tensor, dtype: DType) -> Tensor:
        """Times the weight, in the dtype of the input."""
        return F.mul(self.weight, F.to(x, dtype))


class FusedNorm(Norm):
    """nn.RMSNorm by its own kernel (_fused_rms_norm): saves its input and a number for each row."""

    def __call__(self, x: Tensor) -> Tensor:
        sizes = self.weight.shape

        def rule(gradient: Tensor, _: Sequence[Tensor]) -> Gradients:
            out, weights = gradient.like(gradient.shape), gradient.like(sizes)
            launch(Kind.ROWS_BACKWARD, out, gradient, gradient)
            launch(Kind.ROWS_BACKWARD, weights, gradient, gradient)
            return [out, weights]

        node = record((x, self.weight), rule, x, self.weight)
        out = x.like(x.shape)
        launch(Kind.ROWS, out, x)
        deviations = x.like((*x.shape[:-1], 1), FLOAT32)
        if node is not None:
            keep(node, deviations)
        return connect(out, node)


class WideNorm(RMSNorm):
    """Olmo2RMSNorm and GptOssRMSNorm: the weight multiplies in float32."""

    def weigh(self, x: Tensor, dtype: DType) -> Tensor:
        return F.to(F.mul(self.weight, x), dtype)


class CenteredNorm(Norm):
    """Gemma2RMSNorm: in float32, times one more than the weight."""

    def __call__(self, x: Tensor) -> Tensor:
        out = normalize(F.to(x, FLOAT32))
        out = F.mul(out, F.shift(F.to(self.weight, FLOAT32)))
        return F.to(out, x.dtype)


class UnscaledNorm(Norm):
    """Llama4TextRMSNorm: in float32; what is cast back is multiplied by the weight."""

    def __call__(self, x: Tensor) -> Tensor:
        return F.mul(F.to(normalize(F.to(x, FLOAT32)), x.dtype), self.weight)


def normalize(x: Tensor) -> Tensor:
    """x * rsqrt(mean(x ** 2)), of the last dimension."""
    return F.mul(x, F.rsqrt(F.shift(F.mean(F.pow2(x)))))
