"""Models as transformers, timm and diffusers write them, on tensors without values.

model = build_model(arena, config, recipe)
loss = model(*model.inputs(recipe))
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Final

from ullage.errors import SpecError
from ullage.estimate.training.architectures.model import Model
from ullage.estimate.training.eager.arena import Arena
from ullage.estimate.training.recipe import Recipe
from ullage.models.config import COUNTED, Config

__all__ = ["MODELS", "Model", "build_model"]

# model_type of a config.json -> "module:class" below this package
MODELS: Final = {
    COUNTED: "counted:Counted",
    "llama": "llama:Llama",
    "mistral": "llama:Mistral",
    "qwen2": "llama:Qwen2",
    "qwen3": "llama:Qwen3",
    "granite": "llama:Granite",
    "granitemoehybrid": "hybrids:GraniteHybrid",
    "bamba": "hybrids:Bamba",
    "nemotron_h": "hybrids:NemotronH",
    "olmo2": "llama:Olmo2",
    "smollm3": "llama:SmolLM3",
    "gpt2": "gpt:GPT2",
    "opt": "gpt:OPT",
    "gpt_neox": "gpt:GPTNeoX",
    "gemma2": "gemma:Gemma2",
    "gemma3_text": "gemma:Gemma3",
    "phi3": "phi:Phi3",
    "mixtral": "mixtral:Mixtral",
    "qwen3_moe": "mixtral:Qwen3MoE",
    "deepseek_v3": "deepseek:DeepseekV3",
    "gpt_oss": "gpt_oss:GptOss",
    "llama4_text": "llama4:Llama4",
    "resnet18": "resnet:ResNet",
    "resnet34": "resnet:ResNet",
    "resnet50": "resnet:ResNet",
    "resnet101": "resnet:ResNet",
    "resnet152": "resnet:ResNet",
    "vit": "vit:ViT",
    "mamba2": "mamba2:Mamba2",
    "clip": "clip:Clip",
    "AutoencoderKL": "vae:VAE",
    "UNet2DConditionModel": "unet:UNet",
    "DiTTransformer2DModel": "dit:DiT",
    "whisper": "whisper:Whisper",
    "t5": "t5:T5",
    "bert": "bert:Bert",
    "roberta": "bert:Bert",
    "xlm-roberta": "bert:Bert",
}


def build_model(arena: Arena, config: Config, recipe: Recipe) -> Model:
    """The model of a configuration, its parameters in the arena.

    Raises:
        SpecError: the architecture is not known, a field is missing, or fields contradict.
    """
    kind = config.model_type
    if kind not in MODELS:
        close = get_close_matches(kind, MODELS, n=3)
        meant = f"; close to it: {', '.join(close)}" if close else ""
        raise SpecError(
            f"{config.name}: field 'model_type': found {kind!r}, which ullage has no formula for"
            f"{meant}. `ullage run` plays any model on the phantom"
        )
    module, _, name = MODELS[kind].partition(":")
    model: Model = getattr(import_module(f"{__name__}.{module}"), name)(arena, config, recipe)
    return model
