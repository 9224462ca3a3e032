"""All techniques, by name: the one table in which a new technique is entered.

To add a technique, write `NAME.py` here with its `Technique`, enter it below and add its rows
to the tables of docs (tests/unit/techniques/test_catalog.py says which rows are missing). The
search, the reports and `Plan` read all they need from the `Technique`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ullage.act.techniques.allocator import ALLOCATOR
from ullage.act.techniques.autocast import AUTOCAST
from ullage.act.techniques.autocast_float16 import AUTOCAST_FLOAT16
from ullage.act.techniques.bf16_parameters import BF16_PARAMETERS
from ullage.act.techniques.bf16_states import BF16_STATES
from ullage.act.techniques.bucket_view import BUCKET_VIEW
from ullage.act.techniques.checkpoint import CHECKPOINT
from ullage.act.techniques.checkpoint_segments import CHECKPOINT_SEGMENTS
from ullage.act.techniques.chunked_loss import CHUNKED_LOSS
from ullage.act.techniques.data_parallel import DATA_PARALLEL
from ullage.act.techniques.eight_bit_states import EIGHT_BIT_STATES
from ullage.act.techniques.flash_attention import FLASH_ATTENTION
from ullage.act.techniques.four_bit_states import FOUR_BIT_STATES
from ullage.act.techniques.free_gradients import FREE_GRADIENTS
from ullage.act.techniques.lora import LORA
from ullage.act.techniques.micro_batches import MICRO_BATCHES
from ullage.act.techniques.offload_activations import OFFLOAD_ACTIVATIONS
from ullage.act.techniques.optimizer_in_backward import OPTIMIZER_IN_BACKWARD
from ullage.act.techniques.optimizer_kernel import OPTIMIZER_KERNEL
from ullage.act.techniques.optimizer_offload import OPTIMIZER_OFFLOAD
from ullage.act.techniques.parameter_offload import PARAMETER_OFFLOAD
from ullage.act.techniques.selective_checkpoint import SELECTIVE_CHECKPOINT
from ullage.act.techniques.shard import SHARD
from ullage.act.techniques.shorter_sequence import SHORTER_SEQUENCE
from ullage.act.techniques.technique import Action, Place, Semantics, Technique
from ullage.act.techniques.tensor_parallel import TENSOR_PARALLEL
from ullage.act.techniques.tiled_mlp import TILED_MLP
from ullage.act.techniques.zero_optimizer import ZERO_OPTIMIZER

TECHNIQUES: Mapping[str, Technique] = {
    technique.name: technique
    for technique in (
        ALLOCATOR,
        LORA,
        # activations
        CHECKPOINT,
        CHECKPOINT_SEGMENTS,
        SELECTIVE_CHECKPOINT,
        OFFLOAD_ACTIVATIONS,
        PARAMETER_OFFLOAD,
        TILED_MLP,
        FLASH_ATTENTION,
        CHUNKED_LOSS,
        # gradients
        FREE_GRADIENTS,
        OPTIMIZER_IN_BACKWARD,
        BUCKET_VIEW,
        # the optimizer
        OPTIMIZER_KERNEL,
        OPTIMIZER_OFFLOAD,
        BF16_STATES,
        EIGHT_BIT_STATES,
        FOUR_BIT_STATES,
        BF16_PARAMETERS,
        # everything
        AUTOCAST,
        AUTOCAST_FLOAT16,
        SHORTER_SEQUENCE,
        MICRO_BATCHES,
        # several ranks; what runs a batch in parts is within them
        DATA_PARALLEL,
        ZERO_OPTIMIZER,
        SHARD,
        TENSOR_PARALLEL,
    )
}
_ORDER = tuple(Semantics)


def semantics_of(actions: Sequence[Action]) -> Semantics:
    """The strongest change of any of the actions."""
    kinds = [
        TECHNIQUES[action.technique].semantics
        for action in actions
        if TECHNIQUES[action.technique].place is not Place.RANKS
    ]
    return max(kinds, key=_ORDER.index, default=Semantics.SAME)
