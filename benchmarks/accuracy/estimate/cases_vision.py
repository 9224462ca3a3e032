"""Models of images, sound and sentences, and encoders with decoders, by their published
configurations (configs_vision.json).
"""

from __future__ import annotations

import json
from typing import Any, Final

from benchmarks.accuracy.estimate.case import FOLDER, Case
from ullage.players.eager.training.recipe import Recipe

CONFIGS: Final[dict[str, dict[str, Any]]] = json.loads(
    (FOLDER / "configs_vision.json").read_text(encoding="utf-8")
)


def _case(model: str, gpu: str = "h100-80gb", **fields: Any) -> Case:
    """A model and what of its recipe is not the default."""
    said = ", ".join(f"{name} {value}" for name, value in fields.items())
    return Case(f"{model}, {said}, {gpu}", CONFIGS[model], Recipe(**fields), gpu, "train_vision.py")


CASES: Final = (
    _case("resnet50", batch=64, image=224),
    _case("resnet50", batch=32, image=224, precision="fp32"),
    _case("resnet152", gpu="a100-80gb", batch=32, image=224, precision="fp32", optimizer="sgd"),
    _case("resnet18", gpu="l4", batch=256, image=224),
    _case("resnet50", gpu="a100-80gb", batch=64, image=224, precision="amp-bf16"),
    _case("vit-base", batch=32, image=224),
    _case("vit-base", batch=32, image=224, precision="amp-bf16"),
    _case("vit-base", batch=256, image=224, checkpointing="full"),
    _case("vit-large", gpu="a100-80gb", batch=16, image=224, precision="fp32"),
    _case("bert-base", batch=16, length=512),
    _case("bert-base", gpu="l4", batch=8, length=512, precision="fp32"),
    _case("bert-base", batch=32, length=512, checkpointing="full"),
    _case("roberta-base", gpu="a100-80gb", batch=16, length=256),
    _case("bge-large", batch=16, length=256),
    _case("t5-small", batch=16, length=512, precision="fp32"),
    _case("t5-small", gpu="l4", batch=8, length=512),
    _case("flan-t5-large", gpu="a100-80gb", batch=4, length=512),
    _case("whisper-small", batch=8, length=128),
    _case("whisper-small", batch=16, length=128, checkpointing="full"),
    _case("whisper-large-v3", gpu="a100-80gb", batch=2, length=128),
    _case("sdxl-unet", batch=2, image=1024),
    _case("sd15-unet", batch=4, image=512, precision="fp32"),
    _case("sd15-unet", gpu="a100-80gb", batch=8, image=512),
    _case("sd15-unet", batch=16, image=512, checkpointing="full"),
    _case("sd-vae", gpu="l4", batch=4, image=256),
    _case("sd-vae", batch=2, image=512, precision="fp32"),
    _case("dit-xl-2", batch=16, image=256),
    _case("dit-xl-2", gpu="a100-80gb", batch=16, image=256, precision="fp32"),
    _case("clip-vit-l14", batch=16, image=224, length=77),
    _case("bert-base", gpu="a100-80gb", batch=8, length=512, precision="fp32", attention="eager"),
    _case("roberta-base", batch=8, length=256, attention="eager"),
    _case("t5-small", batch=8, length=512, attention="eager"),
    _case("whisper-small", batch=4, length=128, attention="eager"),
    _case("vit-base", batch=32, image=224, attention="eager"),
    _case(
        "vit-large", gpu="a100-40gb", batch=64, image=224, precision="fp32", library="torchvision"
    ),
    _case("vit-large", gpu="a100-40gb", batch=64, image=224, library="torchvision"),
    _case("vit-large", gpu="a100-40gb", batch=4, image=224, accumulation=4, library="torchvision"),
    _case("clip-vit-l14", batch=16, image=224, length=77, attention="eager"),
    _case("sd15-unet", batch=4, image=512, attention="eager"),
    _case("dit-xl-2", batch=8, image=256, attention="eager"),
    _case("mamba2-130m", batch=4, length=1024),
    _case("mamba2-130m", gpu="a100-80gb", batch=2, length=1024, precision="fp32"),
)
