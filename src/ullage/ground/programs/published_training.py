"""A training loop of a published configuration, for the phantom; it imports nothing of ullage.

    python train.py config.json '{"batch": 4, "length": 1024, "precision": "bf16"}'

The second argument has the fields of `ullage.players.eager.training.recipe.Recipe`. The loop makes
three steps of forward, backward, optimizer.step() and zero_grad(), with the model and the loss of
transformers or timm.
"""

import json
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 3
GPU = torch.device("cuda")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HEADS = {
    "bert": "AutoModelForMaskedLM",
    "roberta": "AutoModelForMaskedLM",
    "t5": "AutoModelForSeq2SeqLM",
    "vit": "AutoModelForImageClassification",
    "whisper": "AutoModelForSpeechSeq2Seq",
}

Recipe = dict[str, Any]
Loss = Callable[[], Tensor]


def of_transformers(fields: dict[str, Any], recipe: Recipe) -> tuple[nn.Module, Loss]:
    """Makes a model of transformers, with the loss that the model computes."""
    import transformers

    config = transformers.AutoConfig.for_model(**fields)
    config.use_cache = False
    name = HEADS.get(config.model_type, "AutoModelForCausalLM")
    with GPU:
        model = getattr(transformers, name).from_config(
            config,
            dtype=DTYPES.get(recipe["precision"], torch.float32),
            attn_implementation=recipe["attention"],
        )
    checkpoint(model, recipe["checkpointing"])
    return model, partial(loss_of, model, recipe)


def loss_of(model: nn.Module, recipe: Recipe) -> Tensor:
    """The loss of one random batch."""
    config, batch = model.config, recipe["batch"]
    if config.model_type == "vit":
        side = recipe["image"]
        pictures = torch.randn(batch, config.num_channels, side, side, device=GPU)
        labels = torch.randint(0, config.num_labels, (batch,), device=GPU)
        return model(pixel_values=pictures.to(model.dtype), labels=labels).loss
    vocab = config.get_text_config().vocab_size
    tokens = torch.randint(0, vocab, (batch, recipe["length"]), device=GPU)
    if config.model_type == "whisper":
        frames = 2 * config.max_source_positions
        heard = torch.randn(batch, config.num_mel_bins, frames, device=GPU, dtype=model.dtype)
        return model(input_features=heard, labels=tokens).loss
    return model(input_ids=tokens, labels=tokens).loss


def of_timm(fields: dict[str, Any], recipe: Recipe) -> tuple[nn.Module, Loss]:
    """Makes a classifier of timm, with a loss, which timm leaves to the program."""
    import timm

    dtype = DTYPES.get(recipe["precision"], torch.float32)
    model = timm.create_model(
        fields.get("architecture") or fields["model_type"],
        num_classes=fields.get("num_classes", 1000),
    ).to(GPU, dtype)
    if recipe["checkpointing"] != "none":
        model.set_grad_checkpointing()

    def loss() -> Tensor:
        side = recipe["image"]
        pictures = torch.randn(recipe["batch"], 3, side, side, device=GPU, dtype=dtype)
        labels = torch.randint(0, 1000, (recipe["batch"],), device=GPU)
        return F.cross_entropy(model(pictures), labels)

    return model, loss


def checkpoint(model: nn.Module, kind: str | int) -> None:
    """Applies activation checkpointing to the blocks of this kind."""
    if kind == "none":
        return
    if kind != "selective":
        model.gradient_checkpointing_enable()
        every = kind if isinstance(kind, int) else 1
        for stack in (module for module in model.modules() if isinstance(module, nn.ModuleList)):
            for number, block in enumerate(stack):
                if hasattr(block, "gradient_checkpointing"):
                    block.gradient_checkpointing = number % every == 0
        return
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    saved_operators = [
        torch.ops.aten.mm.default,
        torch.ops.aten.bmm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    ]
    contexts = partial(create_selective_checkpoint_contexts, saved_operators)
    model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})


def adapt(model: nn.Module, lora: dict[str, Any]) -> nn.Module:
    """Adds adapters of peft to the model and freezes its weights."""
    from peft import LoraConfig, get_peft_model

    if lora.get("is_quantized"):
        raise SystemExit("QLoRA is not checked here; run your own program with `ullage run`")
    targets = lora.get("targets", ["q_proj", "v_proj"])
    return get_peft_model(
        model,
        LoraConfig(
            r=lora.get("rank", 16),
            target_modules="all-linear" if targets == ["all-linear"] else targets,
            lora_dropout=lora.get("dropout", 0.0),
        ),
    )


def make_optimizer(name: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Makes the optimizer of a name in `ullage.players.eager.training.optimizers`, if torch has
    it.
    """
    optim = torch.optim
    known = {
        "adamw": partial(optim.AdamW, foreach=True),
        "adam": partial(optim.Adam, foreach=True),
        "adamw-fused": partial(optim.AdamW, fused=True),
        "adamw-loop": partial(optim.AdamW, foreach=False),
        "adamw-amsgrad": partial(optim.AdamW, amsgrad=True),
        "sgd": optim.SGD,
        "momentum": partial(optim.SGD, momentum=0.9),
        "adafactor": getattr(optim, "Adafactor", None),
        "adagrad": optim.Adagrad,
        "rmsprop": optim.RMSprop,
    }
    if known.get(name) is None:
        raise SystemExit(
            f"{name!r} is not checked here, as this PyTorch lacks it; "
            "run your own program with `ullage run`"
        )
    return known[name](parameters, lr=1e-4)


def main(path: str, recipe: Recipe) -> None:
    """Trains for three steps."""
    fields = json.loads(Path(path).read_text(encoding="utf-8"))
    is_timm = "architecture" in fields or fields.get("model_type", "").startswith("resnet")
    model, loss = (of_timm if is_timm else of_transformers)(fields, recipe)
    model.train()
    if recipe["lora"] is not None:
        model = adapt(model, recipe["lora"])
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = make_optimizer(recipe["optimizer"], trained)
    precision, passes = recipe["precision"], recipe["accumulation"]
    dtype = DTYPES[precision.removeprefix("amp-")]
    for _ in range(STEPS):
        for _ in range(passes):
            with torch.autocast("cuda", dtype, enabled=precision.startswith("amp-")):
                value = loss() / passes
            value.backward()
        if recipe["clips_gradients"]:
            nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=not recipe["keeps_gradients"])


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
