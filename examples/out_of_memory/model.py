"""A GPT from torch's own layers: about 120 million parameters."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCAB_SIZE = 50304
SEQ_LEN = 1024
DIM = 768


class GPT(nn.Module):
    """Twelve causal transformer layers between an embedding and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB_SIZE, DIM)
        self.positions = nn.Embedding(SEQ_LEN, DIM)
        layer = nn.TransformerEncoderLayer(
            DIM, 12, 4 * DIM, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(
            layer, 12, nn.LayerNorm(DIM), enable_nested_tensor=False
        )
        self.head = nn.Linear(DIM, VOCAB_SIZE, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """The mean cross-entropy of the next tokens. ids is (batch, tokens)."""
        num_tokens = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(num_tokens, device=ids.device)
        x = self.tokens(ids) + self.positions(torch.arange(num_tokens, device=ids.device))
        logits = self.head(self.layers(x, mask=mask, is_causal=True))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def train_step(model: GPT, optimizer: torch.optim.Optimizer, batch_size: int) -> float:
    """One step on random tokens; the loss."""
    ids = torch.randint(0, VOCAB_SIZE, (batch_size, SEQ_LEN), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(ids)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()
