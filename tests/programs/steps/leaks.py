"""Keeps 32 MiB after each pass, or calls the parts of a model in turn: python leaks.py WHAT."""

import sys

import torch
from torch import Tensor, nn

SIZE = 32 * 2**20


class Decoder(nn.Module):
    """A model that is called by a method."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(1024, 65536), nn.Linear(65536, 1024)

    def decode(self, x: Tensor) -> Tensor:
        """Calls two children in turn, of which the second has the higher peak."""
        return self.narrow(torch.relu(self.wide(x)))


def main(what: str) -> None:
    """Run the passes."""
    kept: list[Tensor] = []
    decoder = Decoder().to("cuda")
    large = [nn.Linear(8192, 8192, device="cuda") for _ in range(16 if what == "hook" else 1)]
    model = nn.Sequential(*large)

    def keep(*_: object) -> None:
        kept.append(torch.empty(SIZE, dtype=torch.uint8, device="cuda"))

    if what == "hook":
        model.register_forward_hook(keep)
    with torch.inference_mode():
        for _ in range(100 if what == "hook" else 10):
            if what != "hook":
                decoder.decode(torch.randn(4096, 1024, device="cuda"))
            else:
                model(torch.randn(8, 8192, device="cuda"))
            if what == "loop":
                keep()


if __name__ == "__main__":
    main(sys.argv[1])
