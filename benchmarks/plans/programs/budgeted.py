"""Train a compiled model under budgets of torch's `activation_memory_budget` and under plans, one
after the other, and write as JSON what the last step of each took.

    budgeted.py gpt2 8 blocks trials.json found.json      # trials: [{"budget": 0.5}, {"plan": ...}]

The loss is outside of the model, so that the model is one graph.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config as partitioning
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from ullage.act.techniques.selective_checkpoint import is_product

sys.path.insert(0, str(Path(__file__).parent))
from counted import Counted

STEPS, IMAGE, NUM_CLASSES = 3, 224, 1000
Model = tuple[nn.Module, Any, Callable[[int], tuple[Tensor, Tensor]]]


def gpt2() -> Model:
    """GPT-2 small, texts of 1,024 tokens."""
    import transformers as hf

    config = hf.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    model = hf.GPT2LMHeadModel(config)
    return model, model.transformer.h, texts(config.vocab_size, 1024)


def llama() -> Model:
    """A Llama of 270 million parameters, texts of 2,048 tokens."""
    import transformers as hf

    config = hf.LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=16, num_attention_heads=16,
        num_key_value_heads=16, vocab_size=32000, use_cache=False,
    )  # fmt: skip
    model = hf.LlamaForCausalLM(config)
    return model, model.model.layers, texts(config.vocab_size, 2048)


def vit() -> Model:
    """ViT-L/16, images of 224 x 224."""
    import timm

    model = timm.create_model("vit_large_patch16_224")

    def batch(size: int) -> tuple[Tensor, Tensor]:
        images = torch.randn(size, 3, IMAGE, IMAGE, device="cuda")
        return images, torch.randint(0, NUM_CLASSES, (size,), device="cuda")

    return model, model.blocks, batch


def texts(vocabulary: int, length: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Makes batches of random tokens."""

    def batch(size: int) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(0, vocabulary, (size, length), device="cuda")
        return tokens, tokens.flatten()

    return batch


def train(model: nn.Module, optimizer: Any, inputs: Tensor, labels: Tensor) -> None:
    """A step."""
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = model(inputs)
        scores = getattr(found, "logits", found)
        loss = F.cross_entropy(scores.flatten(0, -2), labels)
    del found, scores
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


class Products(TorchDispatchMode):
    """Counts the products of a block's first call."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.num = 0
        self._forward = block.forward
        self._block = block
        block.forward = self._count

    def _count(self, *arguments: Any, **named: Any) -> Any:
        self._block.forward = self._forward
        with self:
            return self._forward(*arguments, **named)

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.num += is_product(function._schema.name.removeprefix("aten::"))
        return function(*args, **(kwargs or {}))


def measure(make: Callable[[], Model], size: int, how: str, trial: dict[str, Any]) -> Any:
    """The peak of the last step under a budget of torch's or a plan, and what it computed."""
    torch._dynamo.reset()
    gc.collect()  # what the compiler held of the trial before
    torch.cuda.empty_cache()  # and what would be cut in other ways
    partitioning.activation_memory_budget = trial.get("budget", 1.0)
    before = torch.cuda.memory_allocated()
    model, blocks, batch = make()
    model = model.to("cuda").train()
    counted = Counted()
    for one in {"nothing": [], "blocks": blocks, "whole": [model]}[how]:
        one.compile(backend=counted.compile)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if "plan" in trial:
        import ullage

        ullage.Plan.parse(trial["plan"]).apply(model, optimizer)
    for _ in range(STEPS):
        counted.begin_step()
        torch.cuda.reset_peak_memory_stats()
        train(model, optimizer, *batch(size))
    found = {
        "peak_bytes": torch.cuda.max_memory_allocated() - before,
        "operations": counted.operations(),
    }
    if how == "nothing":
        products = Products(blocks[0])
        with FlopCounterMode(display=False) as counter:
            train(model, optimizer, *batch(size))
        found |= {"flops": counter.get_total_flops(), "products": products.num}
    return found


def main() -> None:
    """All trials, one after the other; what each has left is gone before the next."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=("gpt2", "llama", "vit"))
    parser.add_argument("batch", type=int)
    parser.add_argument("compile", choices=("nothing", "blocks", "whole"))
    parser.add_argument("trials", type=Path)
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    make = {"gpt2": gpt2, "llama": llama, "vit": vit}[args.model]
    trials = json.loads(args.trials.read_text(encoding="utf-8"))
    found = [measure(make, args.batch, args.compile, trial) for trial in trials]
    args.output.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
