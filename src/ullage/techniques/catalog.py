"""All techniques, by name."""

from __future__ import annotations

from collections.abc import Mapping

from ullage.techniques.allocator import ALLOCATOR
from ullage.techniques.autocast import AUTOCAST
from ullage.techniques.bf16_states import BF16_STATES
from ullage.techniques.checkpoint import CHECKPOINT
from ullage.techniques.chunked_loss import CHUNKED_LOSS
from ullage.techniques.eight_bit_states import EIGHT_BIT_STATES
from ullage.techniques.flash_attention import FLASH_ATTENTION
from ullage.techniques.free_gradients import FREE_GRADIENTS
from ullage.techniques.micro_batches import MICRO_BATCHES
from ullage.techniques.offload_activations import OFFLOAD_ACTIVATIONS
from ullage.techniques.optimizer_in_backward import OPTIMIZER_IN_BACKWARD
from ullage.techniques.optimizer_kernel import OPTIMIZER_KERNEL
from ullage.techniques.optimizer_offload import OPTIMIZER_OFFLOAD
from ullage.techniques.selective_checkpoint import SELECTIVE_CHECKPOINT
from ullage.techniques.technique import Technique
from ullage.techniques.tiled_mlp import TILED_MLP

TECHNIQUES: Mapping[str, Technique] = {
    technique.name: technique
    for technique in (
        ALLOCATOR,
        # activations
        CHECKPOINT,
        SELECTIVE_CHECKPOINT,
        OFFLOAD_ACTIVATIONS,
        TILED_MLP,
        FLASH_ATTENTION,
        CHUNKED_LOSS,
        # gradients
        FREE_GRADIENTS,
        OPTIMIZER_IN_BACKWARD,
        # the optimizer
        OPTIMIZER_KERNEL,
        OPTIMIZER_OFFLOAD,
        BF16_STATES,
        EIGHT_BIT_STATES,
        # everything
        AUTOCAST,
        MICRO_BATCHES,
    )
}
