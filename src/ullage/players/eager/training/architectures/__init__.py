"""Models as transformers, timm and diffusers write them, on tensors without values.

model = build_model(arena, config, recipe)
loss = model(*model.inputs(recipe))
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Final

from ullage.facts.families.config import COUNTED, Config
from ullage.facts.families.defaults import with_defaults
from ullage.ground.errors import SpecError
from ullage.players.eager.training.architectures.model import Model
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.recipe import Recipe

__all__ = ["Model"]

# model_type of a config.json -> "module:class" below this package
MODELS: Final = {
    COUNTED: "counted:Counted",
    "llama": "decoders.llama:Llama",
    "mistral": "decoders.llama:Mistral",
    "qwen2": "decoders.llama:Qwen2",
    "qwen3": "decoders.llama:Qwen3",
    "granite": "decoders.llama:Granite",
    "granitemoehybrid": "decoders.hybrids:GraniteHybrid",
    "bamba": "decoders.hybrids:Bamba",
    "nemotron_h": "decoders.hybrids:NemotronH",
    "olmo2": "decoders.llama:Olmo2",
    "smollm3": "decoders.llama:SmolLM3",
    "gpt2": "decoders.gpt:GPT2",
    "opt": "decoders.gpt:OPT",
    "gpt_neox": "decoders.gpt:GPTNeoX",
    "gemma2": "decoders.gemma:Gemma2",
    "gemma3_text": "decoders.gemma:Gemma3",
    "gemma3n_text": "decoders.gemma3n:Gemma3n",
    "gemma4_text": "decoders.gemma4:Gemma4",
    "phi3": "decoders.phi:Phi3",
    "mixtral": "decoders.mixtral:Mixtral",
    "qwen3_next": "decoders.qwen3_5:Qwen3Next",
    "qwen3_5_text": "decoders.qwen3_5:Qwen35",
    "qwen3_5_moe_text": "decoders.qwen3_5:Qwen35",
    "qwen3_moe": "decoders.mixtral:Qwen3MoE",
    "deepseek_v3": "decoders.deepseek:DeepseekV3",
    "deepseek_v32": "decoders.deepseek:Indexed",
    "glm_moe_dsa": "decoders.deepseek:Indexed",
    "gpt_oss": "decoders.gpt_oss:GptOss",
    "llama4_text": "decoders.llama4:Llama4",
    "resnet18": "images.resnet:ResNet",
    "resnet34": "images.resnet:ResNet",
    "resnet50": "images.resnet:ResNet",
    "resnet101": "images.resnet:ResNet",
    "resnet152": "images.resnet:ResNet",
    "vit": "images.vit:ViT",
    "mamba2": "decoders.mamba2:Mamba2",
    "clip": "images.clip:Clip",
    "AutoencoderKL": "images.vae:VAE",
    "UNet2DConditionModel": "images.unet:UNet",
    "DiTTransformer2DModel": "images.dit:DiT",
    "whisper": "whisper:Whisper",
    "t5": "t5:T5",
    "bert": "bert:Bert",
    "roberta": "bert:Bert",
    "xlm-roberta": "bert:Bert",
}


# library -> the same of models that it has in code of its own
_LLAMAS: Final = ("llama", "mistral", "phi3")
LIBRARY_MODELS: Final = {
    "litgpt": {
        **dict.fromkeys(_LLAMAS, "decoders.libraries:LitGPT"),
        "gemma2": "decoders.libraries:LitGemma2",
        "gpt_neox": "decoders.gpt:GPTNeoX",
    },
    "torchtitan": {"llama": "decoders.libraries:Torchtitan"},
    "torchtune": dict.fromkeys(_LLAMAS, "decoders.libraries:Torchtune"),
    "megatron": {"gpt2": "decoders.megatron:Megatron"},
    "torchvision": {"vit": "images.torchvision:TorchvisionViT"},
    "plain": {"llama": "decoders.libraries:Plain"},
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
    models = LIBRARY_MODELS.get(recipe.library, MODELS)
    if kind not in models:
        raise config.wrong(
            "model_type",
            f"found {kind!r}, of which ullage does not have {recipe.library}'s code; expected "
            f"{', '.join(models)}, or library transformers",
        )
    module, _, name = models[kind].partition(":")
    kind_of_model: type[Model] = getattr(import_module(f"{__name__}.{module}"), name)
    choices = [f"loss {recipe.loss}"] if recipe.loss not in (None, "full") else []
    choices += ["packed"] if recipe.packed else []
    if choices and not kind_of_model.is_decoder:
        raise SpecError(
            f"{choices[0]}: found with {kind}, expected a decoder language model, whose loss and "
            f"masks ullage can change"
        )
    return kind_of_model(arena, with_defaults(config), recipe)  # type: ignore[call-arg]
