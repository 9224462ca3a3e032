"""Trains a decoder by one of the recipes for precision, and prints what it held when."""

import argparse
import json
from collections.abc import Callable

import torch
from decoder import SHAPES, build
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

RECIPES = ("fp32", "autocast", "bf16", "masters", "fp32-gradients", "both-gradients")
PARSER = argparse.ArgumentParser(description=__doc__)
PARSER.add_argument("shape", choices=SHAPES)
PARSER.add_argument("--batch-size", type=int, default=1)
PARSER.add_argument("--length", type=int, default=16)
PARSER.add_argument("--accumulate", type=int, default=1, help="batches before each step")
PARSER.add_argument("--segments", type=int, default=0, help="checkpointed ones; 0 for none")
PARSER.add_argument("--lora", type=int, default=0, help="train adapters of this rank alone")
PARSER.add_argument("--flops", action="store_true", help="count those of one step")
PARSER.add_argument("--foreach", action="store_true", help="the optimizer as it is by default")
PARSER.add_argument("--recipe", choices=RECIPES, default="fp32")


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank one beside it."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        options = {"bias": False, "device": frozen.weight.device, "dtype": frozen.weight.dtype}
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, rank, **options)
        self.up = nn.Linear(rank, frozen.out_features, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x))


def adapt(model: nn.Module, rank: int) -> None:
    """Freezes a decoder, and puts adapters beside the linear layers of its blocks."""
    model.requires_grad_(requires_grad=False)
    for block in model.layers:
        for name, child in list(block.named_children()):
            if isinstance(child, nn.Linear):
                setattr(block, name, Adapted(child, rank))


class Training:
    """A model, its optimizer, and the most bytes held between the passes."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.has_masters = args.recipe in ("masters", "fp32-gradients", "both-gradients")
        is_half = self.has_masters or args.recipe == "bf16"
        self.model = build(args.shape, torch.bfloat16 if is_half else torch.float32, args.segments)
        if args.lora:
            adapt(self.model, args.lora)
        self.trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        owned = [w.detach().float() for w in self.trained] if self.has_masters else self.trained
        self.pairs = list(zip(self.trained, owned, strict=True))
        groups = [[w] for w in owned] if args.recipe == "masters" else [owned]
        fused = None if args.foreach else True
        self.optimizers = [torch.optim.AdamW(group, fused=fused) for group in groups]
        self.held = self.kept = 0

    def note(self) -> None:
        """What is held now."""
        self.held = max(self.held, torch.cuda.memory_allocated())

    def backward(self) -> None:
        """One batch; notes what its forward pass left for the backward pass."""
        args = self.args
        tokens = torch.zeros(args.batch_size, args.length, dtype=torch.long, device="cuda")
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", torch.bfloat16, enabled=args.recipe == "autocast"):
            loss = F.cross_entropy(self.model(tokens).flatten(0, 1), tokens.flatten())
        self.kept = torch.cuda.memory_allocated() - before
        loss.backward()

    def update(self) -> None:
        """The optimizer's step; with master weights their gradients are made of the others."""
        self.note()
        if self.args.recipe == "masters":  # one after the other
            for (weight, owned), optimizer in zip(self.pairs, self.optimizers, strict=True):
                owned.grad = weight.grad.float()
                optimizer.step()
                owned.grad = None
        else:
            for weight, owned in self.pairs if self.has_masters else ():
                owned.grad = weight.grad.float()
                if self.args.recipe == "fp32-gradients":
                    weight.grad = None
            self.note()
            self.optimizers[0].step()
        self.note()
        for weight, owned in self.pairs:
            weight.data.copy_(owned)
            weight.grad = owned.grad = None

    def step(self) -> None:
        """As many batches as are accumulated, and the optimizer."""
        for _ in range(self.args.accumulate):
            self.backward()
        self.update()


def counted(run: Callable[[], None]) -> int:
    """The floating-point operations of matrix products and attention."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def main() -> None:
    args = PARSER.parse_args()
    training = Training(args)
    weights = list(training.model.parameters())
    flops = counted(training.backward) if args.flops else None
    for _ in range(2):
        training.step()
    said = {
        "parameters": sum(weight.numel() for weight in weights),
        "weight_bytes": sum(weight.nbytes for weight in weights),
        "kept_bytes": training.kept,
        "held_bytes": training.held,
        "flops": flops,
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
