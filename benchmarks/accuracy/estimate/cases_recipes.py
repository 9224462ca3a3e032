"""The cases that vary how a model is trained: optimizers, precision, checkpointing, adapters. Their
program, train_recipes.py, needs the libraries of benchmarks/stacks.txt.
"""

from __future__ import annotations

from typing import Any, Final

from benchmarks.accuracy.estimate.case import Case
from ullage.facts.families.builtin import find_model
from ullage.players.eager.training.recipe import Lora, Recipe

__all__ = ["CASES"]

_SMOL, _QWEN, _TINY, _LLAMA = "smollm2-135m", "qwen2.5-0.5b", "tinyllama-1.1b", "llama-3.2-1b"
_QLORA: Final = Lora(rank=64, targets=("all-linear",), is_quantized=True)
_WIDE: Final = Lora(rank=8, targets=("all-linear",), dropout=0.1)

# (model, samples, tokens of each, the rest of the recipe)
_ROWS: Final[tuple[tuple[str, int, int, dict[str, Any]], ...]] = (
    (_SMOL, 8, 512, {"precision": "fp32", "optimizer": "sgd"}),
    (_SMOL, 4, 2048, {"optimizer": "muon"}),
    (_SMOL, 2, 1024, {"optimizer": "adagrad", "clips_gradients": True}),
    (_SMOL, 4, 1024, {"precision": "amp-fp16", "checkpointing": "full"}),
    (_SMOL, 4, 512, {"checkpointing": "full", "steps_in_backward": True}),
    (_QWEN, 2, 1024, {"optimizer": "adafactor"}),
    (_QWEN, 1, 1500, {"optimizer": "adafactor-transformers"}),
    (_QWEN, 4, 512, {"precision": "amp-bf16", "accumulation": 4}),
    (_QWEN, 2, 2048, {"checkpointing": "selective"}),
    (_QWEN, 2, 2048, {"checkpointing": "alternate"}),
    (_TINY, 2, 2048, {"checkpointing": 2, "optimizer": "rmsprop"}),
    (_TINY, 1, 1024, {"optimizer": "adamw-loop", "keeps_gradients": True}),
    (_TINY, 2, 1024, {"optimizer": "adamw-8bit"}),
    (_LLAMA, 1, 4096, {"checkpointing": "full", "optimizer": "adamw-fused"}),
    (_LLAMA, 2, 1024, {"lora": Lora(rank=16)}),
    (_LLAMA, 1, 2048, {"checkpointing": "full", "lora": _QLORA, "optimizer": "adamw-8bit-paged"}),
    (_LLAMA, 2, 1024, {"precision": "amp-bf16", "lora": _WIDE}),
)


def _name(model: str, rest: dict[str, Any]) -> str:
    """Such as "smollm2-135m, muon"."""
    said = []
    for name, value in rest.items():
        if isinstance(value, Lora):
            said.append("QLoRA" if value.is_quantized else f"LoRA {value.rank}")
        elif value is True:
            said.append(name.replace("_", " "))
        elif name in ("checkpointing", "accumulation", "loss"):
            said.append(f"{name} {value}")
        else:
            said.append(str(value))
    return ", ".join([model, *said])


CASES: Final = tuple(
    Case(
        _name(model, rest),
        find_model(model).config.fields,
        Recipe(batch=batch, length=length, **rest),
        program="train_recipes.py",
    )
    for model, batch, length, rest in _ROWS
)
