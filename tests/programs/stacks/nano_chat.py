"""A chat model in the manner of nanochat: rotations, norms without weights, squared ReLU, Muon."""

import torch
from figures import print_figures
from torch import Tensor, nn
from torch.nn import functional

STEPS, BATCH, LENGTH = 3, 8, 2048
VOCABULARY, LAYERS, HEADS, WIDTH = 65536, 12, 6, 768


def norm(x: Tensor) -> Tensor:
    """RMS norm without weights."""
    return functional.rms_norm(x, (x.shape[-1],))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x is (batch, length, heads, depth); cos and sin are (1, length, 1, depth / 2)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos + second * sin, second * cos - first * sin], dim=-1)


class Block(nn.Module):
    """Attention with rotations, then an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x is (batch, length, width)."""
        heads = (*x.shape[:2], HEADS, -1)
        y = norm(x)
        q, k = (norm(rotate(part(y).view(heads), cos, sin)) for part in (self.q, self.k))
        v = self.v(y).view(heads)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.relu(self.up(norm(x))).square())


class Chat(nn.Module):
    """Embedding, blocks, head; logits are capped softly."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        depth = WIDTH // HEADS
        speeds = 10000.0 ** (-torch.arange(0, depth, 2).float() / depth)
        angles = torch.outer(torch.arange(LENGTH).float(), speeds)[None, :, None]
        self.register_buffer("cos", angles.cos().bfloat16(), persistent=False)
        self.register_buffer("sin", angles.sin().bfloat16(), persistent=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """The loss; ids and targets are (batch, length)."""
        x = norm(self.tokens(ids).bfloat16())
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = 15 * torch.tanh(self.head(norm(x)).float() / 15)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main() -> None:
    """Three steps: Muon for the matrices of the blocks, AdamW for embedding and head."""
    torch.manual_seed(0)
    model = Chat().to("cuda")
    muon = torch.optim.Muon(model.blocks.parameters(), lr=0.02)
    adam = torch.optim.AdamW([model.tokens.weight, model.head.weight], lr=0.2, fused=True)
    for step in range(STEPS):
        ids = torch.randint(VOCABULARY, (BATCH, LENGTH + 1)).to("cuda", non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        for optimizer in (muon, adam):
            optimizer.step()
        model.zero_grad(set_to_none=True)
        print(f"step {step} loss {loss.item():.4f}")
    print_figures(model, muon, adam, num_steps=STEPS)


if __name__ == "__main__":
    main()
