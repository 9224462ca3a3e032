"""The page's initial data: GPUs, models, the choices of its controls, names and colours."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ullage.facts.families.architecture import MODEL_TYPES
from ullage.facts.families.builtin import load_models
from ullage.facts.families.config import Config
from ullage.facts.families.kv_cache import PRECISIONS as KV_PRECISIONS
from ullage.facts.gpus import Gpu, load_catalog
from ullage.facts.gpus.levels import memory_levels
from ullage.ground.version import __version__
from ullage.players.eager.serving.model_weights import FORMATS
from ullage.players.eager.training.architectures import MODELS as TRAINED
from ullage.players.eager.training.layout import BUCKETS, SHARDINGS
from ullage.players.eager.training.optimizers import OPTIMIZERS
from ullage.players.eager.training.recipe import GRADIENTS, LIBRARIES, LOSSES, PRECISIONS
from ullage.players.eager.training.torch_version import NEWEST
from ullage.verbs.ui.engine import HOW_TO_INSTALL
from ullage.verbs.ui.shape import read_shape
from ullage.verbs.views.palette import CACHE_LOOK, CATEGORY_LOOKS, PART_LOOKS


def describe(python: str | None, vllm_python: str | None) -> dict[str, Any]:
    """All of it, as one object.

    Args:
        python: the interpreter in which checks run, if one was named.
        vllm_python: the one that has vLLM, if any does.
    """
    looks = {category.value: look for category, look in CATEGORY_LOOKS.items()}
    looks |= {**PART_LOOKS, "cache": CACHE_LOOK}
    return {
        "version": __version__,
        "python": python,
        "vllm_problem": HOW_TO_INSTALL if vllm_python is None else None,
        "gpus": [_gpu(gpu) for gpu in load_catalog()],
        "models": [
            {
                "name": model.name,
                "source": model.source,
                "family": _family(model.config),
                "trains": model.config.fields.get("model_type") in TRAINED,
                "serves": model.config.fields.get("model_type") in MODEL_TYPES,
                **asdict(read_shape(model.config)),
            }
            for model in load_models().values()
        ],
        "precisions": list(PRECISIONS),
        "optimizers": {name: optimizer.what for name, optimizer in OPTIMIZERS.items()},
        "shardings": list(SHARDINGS),
        "buckets": list(BUCKETS),
        "gradients": list(GRADIENTS),
        "losses": list(LOSSES),
        "libraries": list(LIBRARIES),
        "torches": [f"2.{minor}" for minor in range(NEWEST[1], -1, -1)] + ["1.13", "1.12", "1.10"],
        "weights": {name: weight_format.what for name, weight_format in FORMATS.items()},
        "kv": ["auto", *KV_PRECISIONS],
        "looks": {name: {"label": look.label, "color": look.color} for name, look in looks.items()},
    }


def _family(config: Config) -> str:
    """The name in transformers; models of timm and diffusers name their library otherwise."""
    kind = config.fields.get("model_type", config.fields.get("_class_name", "timm"))
    return str(kind)


def _gpu(gpu: Gpu) -> dict[str, Any]:
    return {
        "slug": gpu.slug,
        "name": gpu.name,
        "segment": gpu.segment.value,
        "architecture": gpu.architecture,
        "total_bytes": gpu.total_bytes,
        "num_multiprocessors": gpu.num_multiprocessors,
        "levels": [level._asdict() for level in memory_levels(gpu)],
    }
