"""A program that uses JAX alone, or beside torch."""

import sys

import jax

if "--torch" in sys.argv:
    import torch

    torch.zeros(1, device="cuda")
print(jax.__doc__)
if "--fails" in sys.argv:
    raise RuntimeError("no CUDA device is visible to JAX")
