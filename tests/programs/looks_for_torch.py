"""Asks whether torch is there, as many libraries do, long before it is imported."""

import importlib.util
import sys

FOUND = importlib.util.find_spec("torch")
assert FOUND is not None
assert FOUND.loader.is_package("torch")
assert "torch" not in sys.modules

import torch

print(torch.zeros(1 << 20, device="cuda").nbytes)
