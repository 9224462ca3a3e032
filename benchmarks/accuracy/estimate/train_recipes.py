"""A training loop with everything that `ullage.players.eager.training.recipe.Recipe` can say.

    python train_recipes.py config.json '{"length": 1024, "optimizer": "adafactor"}'

As train.py, with every optimizer, "checkpointing" as a number or "selective", "clips_gradients",
"keeps_gradients", "steps_in_backward" and "lora": {"rank", "targets", "is_quantized"}.
"""

import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
STEPS = 3
ATTENTIONS = [
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
]
KEPT = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    *ATTENTIONS,
]


def quantize(module: nn.Module) -> None:
    """Every linear layer but the head in NF4, as loading with bitsandbytes does it."""
    import bitsandbytes

    for name, child in list(module.named_children()):
        if not isinstance(child, nn.Linear):
            quantize(child)
        elif name != "lm_head":
            made = bitsandbytes.nn.Linear4bit(
                child.in_features, child.out_features, bias=child.bias is not None,
                compute_dtype=torch.bfloat16, quant_type="nf4",
            )  # fmt: skip
            made.weight = bitsandbytes.nn.Params4bit(
                child.weight.data, requires_grad=False, quant_type="nf4", module=made
            )
            setattr(module, name, made.to("cuda"))


def adapt(model: nn.Module, lora: dict[str, Any], *, is_checkpointed: bool) -> nn.Module:
    """The model with adapters, by peft."""
    import peft

    if lora.get("is_quantized"):
        model.is_loaded_in_4bit = model.is_quantized = True
        model.config.quantization_config = transformers.BitsAndBytesConfig(load_in_4bit=True)
        model.quantization_method = "bitsandbytes"
        model = peft.prepare_model_for_kbit_training(
            model,
            use_gradient_checkpointing=is_checkpointed,
            gradient_checkpointing_kwargs={"use_reentrant": False},
        )
    targets = lora.get("targets", ["q_proj", "v_proj"])
    return peft.get_peft_model(
        model,
        peft.LoraConfig(
            r=lora.get("rank", 16),
            target_modules="all-linear" if targets == ["all-linear"] else targets,
            lora_dropout=lora.get("dropout", 0.0),
            task_type="CAUSAL_LM",
        ),
    )


def make_model(path: str, recipe: dict[str, Any]) -> nn.Module:
    """The model in training mode on the GPU."""
    config = transformers.AutoConfig.from_pretrained(path)
    config.use_cache = False
    lora, way = recipe.get("lora"), recipe.get("checkpointing", "none")
    is_quantized = bool(lora and lora.get("is_quantized"))
    dtype = DTYPES.get(recipe.get("precision", "bf16"), torch.float32)
    with torch.device("cpu" if is_quantized else "cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    layers = model.get_decoder().layers
    if is_quantized:
        quantize(model)
        model.to("cuda")
    if lora:
        model = adapt(model, lora, is_checkpointed=way == "full")
    if way == "full":
        model.gradient_checkpointing_enable()
    elif way == "selective":
        wrap(layers, 1, context_fn=partial(create_selective_checkpoint_contexts, KEPT))
    elif way == "alternate":
        wrap(layers, 1, context_fn=keep_alternate)
    elif way != "none":
        wrap(layers, way)
    if recipe.get("compiled"):
        model.compile()
    return model.train()


def keep_alternate() -> tuple[Any, Any]:
    """Every second product and attention, as torchtitan's selective checkpointing by operator."""
    counts = {True: 0, False: 0}

    def choose(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        is_product = operator == torch.ops.aten.mm.default
        counts[context.is_recompute] += is_product
        is_kept = operator in ATTENTIONS or (is_product and counts[context.is_recompute] % 2)
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(choose)


def wrap(layers: nn.ModuleList, every: int, **options: Any) -> None:
    """Checkpoints every Nth layer."""
    for layer in layers[every - 1 :: every]:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, **options)


def make_optimizers(model: nn.Module, name: str) -> list[torch.optim.Optimizer]:
    """The optimizers of a name in ullage.players.eager.training.optimizers."""
    trained = [one for one in model.parameters() if one.requires_grad]
    kinds = torch.optim
    if name == "muon":
        inside = {id(one) for one in model.get_decoder().layers.parameters()}
        of_muon = [one for one in trained if one.ndim == 2 and id(one) in inside]
        rest = [one for one in trained if one.ndim != 2 or id(one) not in inside]
        return [kinds.Muon(of_muon), kinds.AdamW(rest)]
    if name.startswith("adamw-8bit") and not name.endswith("torchao"):
        import bitsandbytes

        is_paged = name.endswith("paged")
        return [getattr(bitsandbytes.optim, "PagedAdamW8bit" if is_paged else "AdamW8bit")(trained)]
    make = {
        "adamw": kinds.AdamW,
        "adam": kinds.Adam,
        "adamw-fused": partial(kinds.AdamW, fused=True),
        "adamw-loop": partial(kinds.AdamW, foreach=False),
        "adamw-amsgrad": partial(kinds.AdamW, amsgrad=True),
        "sgd": partial(kinds.SGD, lr=1e-3),
        "momentum": partial(kinds.SGD, lr=1e-3, momentum=0.9),
        "adafactor": kinds.Adafactor,
        "adafactor-transformers": transformers.Adafactor,
        "adagrad": kinds.Adagrad,
        "rmsprop": kinds.RMSprop,
    }[name]
    return [make(trained)]


def step_in_backward(model: nn.Module, name: str) -> list[torch.optim.Optimizer]:
    """Each parameter has an optimizer of its own, which runs as soon as there is a gradient."""

    def step(one: Tensor) -> None:
        optimizers[one].step()
        optimizers[one].zero_grad()

    optimizers = {}
    for one in model.parameters():
        kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[name]
        optimizers[one] = kind([one], lr=1e-4, foreach=True)
        one.register_post_accumulate_grad_hook(step)
    return list(optimizers.values())


def make_batches(model: nn.Module, recipe: dict[str, Any]) -> Iterator[dict[str, Tensor]]:
    """Random tokens, each with the label that it is."""
    shape = (recipe.get("batch", 1), recipe["length"])
    vocab = model.config.get_text_config().vocab_size
    while True:
        tokens = torch.randint(0, vocab, shape, device="cuda")
        yield {"input_ids": tokens, "labels": tokens}


def count(model: nn.Module, states: list[dict[str, Any]]) -> dict[str, int]:
    """Bytes on the GPU of parameters, their gradients, and the optimizers' states. Tables that
    several share count once; paged states lie outside of PyTorch's memory.
    """
    parameters: list[Tensor] = []
    for one in model.parameters():
        parameters.append(one)
        found = getattr(one, "quant_state", None)
        if found is not None:
            from bitsandbytes.functional import name2qmap

            inner = found.state2
            parameters += [found.absmax, found.code, found.offset, inner.absmax, inner.code]
            parameters += [table for name, table in name2qmap.items() if name == "dynamic"]
    kept = [
        one
        for state in states
        for one in state.values()
        if isinstance(one, Tensor) and one.is_cuda and not getattr(one, "is_paged", False)
    ]
    return {
        "parameters": sum(one.nbytes for one in unique(parameters)),
        "gradients": sum(one.grad.nbytes for one in model.parameters() if one.grad is not None),
        "optimizer_states": sum(one.nbytes for one in unique(kept)),
    }


def unique(tensors: list[Tensor]) -> list[Tensor]:
    """Each once."""
    return list({one.data_ptr(): one for one in tensors}.values())


def main(path: str, recipe: dict[str, Any]) -> None:
    """Three steps."""
    model = make_model(path, recipe)
    name = recipe.get("optimizer", "adamw")
    is_early = bool(recipe.get("steps_in_backward"))
    inner = step_in_backward(model, name) if is_early else []
    optimizers = [] if is_early else make_optimizers(model, name)
    precision, accumulation = recipe.get("precision", "bf16"), recipe.get("accumulation", 1)
    autocast = torch.autocast(
        "cuda", DTYPES[precision.removeprefix("amp-")], enabled=precision.startswith("amp-")
    )
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "amp-fp16")
    batches = make_batches(model, recipe)
    for step in range(STEPS):
        for _ in range(accumulation):
            batch = next(batches)
            with autocast:
                loss = model(**batch).loss
            if recipe.get("zeroes_late"):
                model.zero_grad()
            scaler.scale(loss).backward()
        if recipe.get("clips_gradients"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for one in optimizers:
            scaler.step(one)
        scaler.update()
        if step == STEPS - 1:
            states = [state for one in optimizers + inner for state in one.state.values()]
            print(json.dumps(count(model, states)))
        for one in [] if recipe.get("zeroes_late") else optimizers:
            one.zero_grad(set_to_none=not recipe.get("keeps_gradients"))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
