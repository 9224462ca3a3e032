"""The scales of a cache in float8, which dummy weights must not stand for.

    leave_to_defaults()

A checkpoint mostly has none, and vLLM then takes 1. Its dummy weights fill them with numbers at
random, of which nobody knows on the phantom whether they are positive, as vLLM asks.
"""

from __future__ import annotations

from typing import Final

from ullage.serve.vllm.executor import Theirs

_NAMES: Final = ("q_scale", "k_scale", "v_scale", "prob_scale")
_MISSING: Final = -1.0
"""The value that vLLM gives a scale that no checkpoint has."""


def leave_to_defaults() -> None:
    """Has vLLM find no scales where it looks for them after loading."""
    import torch
    from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod

    look = BaseKVCacheMethod.process_weights_after_loading

    def look_without_scales(self: Theirs, layer: Theirs) -> None:
        for name in _NAMES:
            if hasattr(layer, name):
                scale = torch.tensor(_MISSING, device="cpu")
                setattr(layer, name, torch.nn.Parameter(scale, requires_grad=False))
        look(self, layer)

    BaseKVCacheMethod.process_weights_after_loading = look_without_scales
