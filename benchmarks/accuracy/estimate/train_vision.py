"""A training loop of a model that is no decoder, for the phantom to run: of images, of sound, of
sentences, or of an encoder with a decoder. It knows nothing of ullage.

    python train_vision.py config.json '{"batch": 8, "image": 224, "precision": "bf16"}'

The second argument holds the fields of `ullage.players.eager.training.recipe.Recipe` that are not
its defaults. The library is the one that the configuration is of: transformers (model_type),
diffusers (_class_name) or timm (architecture).
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from train import OPTIMIZERS, STEPS, count

Batch = dict[str, Tensor]
Parts = tuple[nn.Module, Callable[[], Batch], Callable[[Batch], Tensor]]
GPU = torch.device("cuda")
DEFAULTS = {
    "batch": 1,
    "accumulation": 1,
    "precision": "bf16",
    "optimizer": "adamw",
    "checkpointing": "none",
    "attention": "sdpa",
    "library": "transformers",
}
SENTENCES = ("BertModel", "RobertaModel", "XLMRobertaModel")
TEXT_TOKENS, POOLED, TIME_IDS = 77, 1280, 6  # that a diffusion model reads
FRAMES = 3000  # of 30 seconds


def tokens(options: SimpleNamespace) -> Tensor:
    """Token numbers."""
    return torch.randint(1, 1000, (options.batch, options.length), device=GPU)


def pictures(options: SimpleNamespace, channels: int = 3, shrink: int = 1) -> Tensor:
    """Square pictures, or what they are encoded in."""
    side = options.image // shrink
    return torch.randn(options.batch, channels, side, side, device=GPU)


def labels(options: SimpleNamespace, classes: int = 1000) -> Tensor:
    """A class, or a time, for each sample."""
    return torch.randint(0, classes, (options.batch,), device=GPU)


def of_timm(fields: dict[str, Any], options: SimpleNamespace) -> Parts:
    """A classifier of timm; the loss is outside of it."""
    import timm

    model = timm.create_model(fields["architecture"], num_classes=fields["num_classes"])
    return (
        model,
        lambda: {"x": pictures(options), "labels": labels(options)},
        lambda batch: F.cross_entropy(model(batch["x"]), batch["labels"]),
    )


def of_torchvision(fields: dict[str, Any], options: SimpleNamespace) -> Parts:
    """A vision transformer of torchvision; the loss is outside of it."""
    from torchvision.models import VisionTransformer

    model = VisionTransformer(
        image_size=fields["image_size"], patch_size=fields["patch_size"],
        num_layers=fields["num_hidden_layers"], num_heads=fields["num_attention_heads"],
        hidden_dim=fields["hidden_size"], mlp_dim=fields["intermediate_size"],
    )  # fmt: skip
    return (
        model,
        lambda: {"x": pictures(options), "labels": labels(options)},
        lambda batch: F.cross_entropy(model(batch["x"]), batch["labels"]),
    )


def of_transformers(fields: dict[str, Any], options: SimpleNamespace) -> Parts:
    """A model of transformers with its own loss, or two sentences told apart."""
    import transformers

    kind, name = fields.pop("model_type"), fields["architectures"][0]
    config = transformers.AutoConfig.for_model(kind, **fields)
    if kind != "mamba2":
        config._attn_implementation = options.attention
    config.use_cache = False
    model = getattr(transformers, name)(config)

    def batch() -> Batch:
        if kind == "vit":
            return {"pixel_values": pictures(options), "labels": labels(options, config.num_labels)}
        if kind == "clip":
            return {"pixel_values": pictures(options), "input_ids": tokens(options)}
        if kind == "whisper":
            sound = torch.randn(options.batch, config.num_mel_bins, FRAMES, device=GPU)
            return {"input_features": sound, "labels": tokens(options)}
        ids = tokens(options)
        return {"input_ids": ids, "labels": tokens(options) if name in SENTENCES else ids}

    def loss(given: Batch) -> Tensor:
        if name in SENTENCES:
            return contrast(embed(model, given["input_ids"]), embed(model, given["labels"]))
        more = {"return_loss": True} if kind == "clip" else {}
        return model(**given, **more).loss

    return model, batch, loss


def embed(model: nn.Module, ids: Tensor) -> Tensor:
    """The mean of the tokens' outputs, of length 1."""
    return F.normalize(model(input_ids=ids).last_hidden_state.mean(1), dim=-1)


def contrast(first: Tensor, second: Tensor) -> Tensor:
    """Each sentence against all of the batch (multiple negatives ranking)."""
    scores = first @ second.T * 20.0
    return F.cross_entropy(scores, torch.arange(len(scores), device=GPU))


def of_diffusers(fields: dict[str, Any], options: SimpleNamespace) -> Parts:
    """A denoiser, or an autoencoder, of diffusers, with the mean squared error."""
    import diffusers

    model = getattr(diffusers, fields["_class_name"]).from_config(fields)
    config = model.config
    if options.attention == "eager":
        from diffusers.models.attention_processor import AttnProcessor

        for module in model.modules():
            if hasattr(module, "set_processor"):
                module.set_processor(AttnProcessor())
    if fields["_class_name"] == "AutoencoderKL":
        return (
            model,
            lambda: {"x": pictures(options)},
            lambda given: F.mse_loss(model(given["x"]).sample.float(), given["x"].float()),
        )

    def batch() -> Batch:
        given = {
            "x": pictures(options, config.in_channels, 8),
            "noise": pictures(options, config.in_channels, 8),
            "times": labels(options),
        }
        if "cross_attention_dim" not in fields:
            return given | {"class_labels": labels(options)}
        given["text"] = torch.randn(
            options.batch, TEXT_TOKENS, config.cross_attention_dim, device=GPU
        )
        if config.addition_embed_type == "text_time":
            given["text_embeds"] = torch.randn(options.batch, POOLED, device=GPU)
            given["time_ids"] = torch.ones(options.batch, TIME_IDS, device=GPU)
        return given

    def loss(given: Batch) -> Tensor:
        if "class_labels" in given:
            out = model(given["x"], given["times"], given["class_labels"]).sample
            out = out[:, : config.in_channels]
        else:
            out = model(given["x"], given["times"], given["text"], added_cond_kwargs=given).sample
        return F.mse_loss(out.float(), given["noise"].float())

    return model, batch, loss


def main(path: str, recipe: dict[str, Any]) -> None:
    """Trains for three steps."""
    fields = json.loads(Path(path).read_text(encoding="utf-8"))
    options = SimpleNamespace(**(DEFAULTS | recipe))
    is_bf16, is_mixed = options.precision == "bf16", options.precision == "amp-bf16"
    torch.set_default_dtype(torch.bfloat16 if is_bf16 else torch.float32)
    library = of_transformers if "model_type" in fields else of_timm
    library = of_torchvision if options.library == "torchvision" else library
    with GPU:
        make = of_diffusers if "_class_name" in fields else library
        model, make_batch, find_loss = make(fields, options)
    model.train()
    if options.checkpointing == "full":
        turn_on = getattr(model, "gradient_checkpointing_enable", None)
        (turn_on or model.enable_gradient_checkpointing)()
    optimizer = OPTIMIZERS[options.optimizer](model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        for _ in range(options.accumulation):
            batch = make_batch()
            with torch.autocast("cuda", torch.bfloat16, enabled=is_mixed):
                loss = find_loss(batch)
            loss.backward()
        optimizer.step()
        counts = count(model, optimizer)
        optimizer.zero_grad()
    print(json.dumps(counts))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
