"""A training loop of a model of transformers, for the phantom to run; it knows nothing of ullage.

    python train.py config.json '{"batch": 4, "length": 1024, "precision": "bf16"}'

The second argument holds the fields of `ullage.players.eager.training.recipe.Recipe` that are not
its defaults, and "head", the transformers class that has the loss, such as AutoModelForCausalLM.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch import Tensor, nn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}
STEPS = 3


def make_model(path: str, recipe: dict[str, Any]) -> nn.Module:
    """The model in training mode on the GPU, in the dtype in which its parameters are kept."""
    config = transformers.AutoConfig.from_pretrained(path)
    config.use_cache = False
    head = getattr(transformers, recipe.get("head", "AutoModelForCausalLM"))
    dtype = DTYPES.get(recipe.get("precision", "bf16"), torch.float32)
    attention = "eager" if recipe.get("attention") == "eager" else None  # None: as the model has it
    with torch.device("cuda"):
        model = head.from_config(config, dtype=dtype, attn_implementation=attention)
    if recipe.get("checkpointing", "none") == "full":
        model.gradient_checkpointing_enable()
    return model.train()


def make_batches(model: nn.Module, recipe: dict[str, Any]) -> Iterator[dict[str, Tensor]]:
    """Random tokens, each with the label that it is."""
    shape = (recipe.get("batch", 1), recipe["length"])
    vocab = model.config.get_text_config().vocab_size
    while True:
        tokens = torch.randint(0, vocab, shape, device="cuda")
        yield {"input_ids": tokens, "labels": tokens}


def main(path: str, recipe: dict[str, Any]) -> None:
    """Three steps of the loop that `ullage estimate` stands for."""
    model = make_model(path, recipe)
    optimizer = OPTIMIZERS[recipe.get("optimizer", "adamw")](model.parameters(), lr=1e-4)
    precision, accumulation = recipe.get("precision", "bf16"), recipe.get("accumulation", 1)
    autocast = torch.autocast(
        "cuda", DTYPES[precision.removeprefix("amp-")], enabled=precision.startswith("amp-")
    )
    batches = make_batches(model, recipe)
    for _ in range(STEPS):
        for _ in range(accumulation):
            batch = next(batches)
            with autocast:
                loss = model(**batch).loss / accumulation
            loss.backward()
        optimizer.step()
        counts = count(model, optimizer)
        optimizer.zero_grad()
    print(json.dumps(counts))


def count(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes on the GPU of parameters, of their gradients, and of the optimizer's states."""
    parameters = list(model.parameters())
    states = [
        one
        for state in optimizer.state.values()
        for one in state.values()
        if isinstance(one, Tensor) and one.is_cuda
    ]
    return {
        "parameters": sum(one.nbytes for one in parameters),
        "gradients": sum(one.grad.nbytes for one in parameters if one.grad is not None),
        "optimizer_states": sum(one.nbytes for one in states),
    }


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
