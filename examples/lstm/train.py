"""An LSTM language model on cuDNN: truncated backpropagation through time, tied embeddings.

The shape is the large model of Zaremba et al. 2014 (arXiv:1409.2329): two layers of 1500 units, 35
steps in time, a vocabulary of 10,000 words, plain SGD with clipped gradients. cuDNN keeps what its
backward needs in one reserve space per call.

    python examples/lstm/train.py --batch-size 256
    ullage run --gpu t4 -- examples/lstm/train.py --batch-size 256
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = tuple[Tensor, Tensor]


class LanguageModel(nn.Module):
    """Words to the logits of the words that follow, by way of a recurrent state."""

    def __init__(self, vocab_size: int, dim: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim)
        self.lstm = nn.LSTM(dim, dim, num_layers, dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(dim, vocab_size)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Logits (time, batch, vocabulary) and the state after words (time, batch)."""
        x, state = self.lstm(self.dropout(self.embedding(ids)), state)
        return self.head(self.dropout(x)), state


def main() -> None:
    """Train for a few steps; one line per step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seq-len", type=int, default=35, help="steps back in time")
    parser.add_argument("--vocab-size", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=1500)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1.0)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = LanguageModel(args.vocab_size, args.dim, args.layers, dropout=0.65).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    num_words = args.steps * args.seq_len + 1
    words = torch.randint(0, args.vocab_size, (num_words, args.batch_size), device="cuda")
    state = None
    for step in range(args.steps):
        started = time.perf_counter()
        window = words[step * args.seq_len : (step + 1) * args.seq_len + 1]
        logits, state = model(window[:-1], state)
        loss = F.cross_entropy(logits.flatten(0, 1), window[1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad()
        state = (state[0].detach(), state[1].detach())  # the state goes on, its graph does not
        text = f"step {step}  loss {loss.item():.4f}"
        print(f"{text}  {(time.perf_counter() - started) * 1e3:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
