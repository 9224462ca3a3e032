"""What torchtitan did at the end of 2024, for torchtitan 0.1.0.

Loaded by --experimental.custom_import titan2024. It leaves the loss uncompiled, as torchtitan's
train.py did then whatever --training.compile said, and takes the RMSNorm of separate operators that
was the default of torchtitan/models/norms.py.
"""

import torch
from llama_sizes import register

register("titan2024")


class RMSNorm(torch.nn.Module):
    """Divides by the root of the mean square, in float32, and multiplies with a weight."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The normed values, in the dtype of x."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return normed.type_as(x) * self.weight

    def reset_parameters(self) -> None:
        """Sets the weight to one."""
        torch.nn.init.ones_(self.weight)


torch.nn.RMSNorm = RMSNorm
