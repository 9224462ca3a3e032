"""Trains a small transformer and resets no peak; its last line is torch's own account, as JSON."""

import json

import torch
import torch.nn.functional as F
from torch import nn


class Tagger(nn.Module):
    """An embedding, a two-layer transformer and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(1000, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 1000)
        self.register_buffer("scale", torch.ones(1000))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Scores of (batch, tokens, 1000). ids is (batch, tokens)."""
        return self.head(self.layers(self.tokens(ids))) * self.scale


def main() -> None:
    """Four steps, the third with a larger batch than the others."""
    torch.manual_seed(0)
    model = Tagger().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for batch_size in (8, 8, 16, 8):
        ids = torch.randint(0, 1000, (batch_size, 64), device="cuda")
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    stats = torch.cuda.memory_stats()
    kinds = ("requested", "allocated", "reserved")
    found = {f"peak_{kind}_bytes": stats[f"{kind}_bytes.all.peak"] for kind in kinds}
    found |= {name: stats[name] for name in ("num_ooms", "num_alloc_retries")}
    found["num_segments"] = stats["segment.all.peak"]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
