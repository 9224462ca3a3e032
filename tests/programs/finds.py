"""Finds elements that only a kernel knows of, in six ways; prints how many there are."""

import json

import torch

values = torch.randn(1000, 30, device="cuda").square()
places = values[:, :1].mul(9).long().T
entries = torch.sparse_coo_tensor(places, values[:, 0], (30,), check_invariants=False)
print(
    json.dumps(
        [
            len(values.gt(0.5).nonzero()),
            len(values[values > 0.5]),
            len(values.masked_select(values > 0.5)),
            len(values[:, 0].mul(9).long().unique()),
            len(values.mul(9).long().unique(dim=0)),
            entries.coalesce().values().numel(),
        ]
    )
)
