"""Finds elements that only a kernel knows of, in four ways; prints how many there are."""

import json

import torch

values = torch.randn(1000, 30, device="cuda").square()
print(
    json.dumps(
        [
            len(values.gt(0.5).nonzero()),
            len(values[values > 0.5]),
            len(values.masked_select(values > 0.5)),
            len(values[:, 0].mul(9).long().unique()),
        ]
    )
)
