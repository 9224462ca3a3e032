"""A loop without modules that stores its results."""

import sys

import torch

IS_CLEAN = "--clean" in sys.argv
matrix = torch.randn(2048, 2048, device="cuda")
results = []
for _ in range(24):
    samples = torch.randn(2048, 2048, device="cuda")
    product = (samples @ matrix).relu()
    results.append(product.cpu() if IS_CLEAN else product)
