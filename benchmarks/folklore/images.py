"""Trains a network of timm on images, and prints what its forward pass left for the backward."""

import argparse
import json

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

PARSER = argparse.ArgumentParser(description=__doc__)
PARSER.add_argument("network")
PARSER.add_argument("--batch-size", type=int, default=32)
PARSER.add_argument("--amp", action="store_true", help="autocast to bfloat16")
PARSER.add_argument("--checkpoint", action="store_true", help="as timm does it")
PARSER.add_argument("--layers", default="", help="of which the growth is told, as in conv1,maxpool")
ARGS = PARSER.parse_args()


def watch(model: nn.Module, name: str, grown: dict[str, dict[str, int]]) -> None:
    """Notes what a layer's forward pass adds to the allocated bytes, and what its output holds."""
    layer = model.get_submodule(name)
    before: list[int] = []
    layer.register_forward_pre_hook(lambda *_: before.append(torch.cuda.memory_allocated()))

    def after(_layer: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        grown[name] = {"grown": torch.cuda.memory_allocated() - before.pop(), "out": output.nbytes}

    layer.register_forward_hook(after)


def main() -> None:
    model = timm.create_model(ARGS.network, num_classes=1000).cuda().train()
    model.set_grad_checkpointing(ARGS.checkpoint)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    grown: dict[str, dict[str, int]] = {}
    for name in filter(None, ARGS.layers.split(",")):
        watch(model, name, grown)
    for _ in range(2):
        images = torch.zeros(ARGS.batch_size, 3, 224, 224, device="cuda")
        labels = torch.zeros(ARGS.batch_size, dtype=torch.long, device="cuda")
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", torch.bfloat16, enabled=ARGS.amp):
            loss = F.cross_entropy(model(images), labels)
        kept = torch.cuda.memory_allocated() - before
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = sum(weight.nbytes for weight in model.parameters())
    print(json.dumps({"kept_bytes": kept, "weight_bytes": weights, "layers": grown}))


if __name__ == "__main__":
    main()
