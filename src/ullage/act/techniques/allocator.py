"""Settings of PyTorch's allocator: how it rounds, splits and releases memory."""

from __future__ import annotations

from ullage.act.techniques.technique import Action, Place, Semantics, Setting, Technique
from ullage.ground.errors import PlanError

# kLargeBuffer of c10/core/CachingDeviceAllocator.h: torch refuses smaller limits.
_LEAST_SPLIT_MIB = 20
# Both spellings: torch reads the second before 2.10, and prefers the first since.
_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def _variables(action: Action) -> dict[str, str]:
    settings = {name: ALLOCATOR.value_of(action, name) for name in ALLOCATOR.settings}
    chosen = {name: value for name, value in settings.items() if value}
    _refuse_conflicts(chosen)
    text = ",".join(f"{name}:{value}" for name, value in chosen.items())
    return dict.fromkeys(_VARIABLES, text)


def _refuse_conflicts(chosen: dict[str, bool | int | float | str]) -> None:
    split = chosen.get("max_split_size_mb")
    power = chosen.get("roundup_power2_divisions", 1)
    threshold = chosen.get("garbage_collection_threshold", 0.5)
    reason = None
    if not chosen:
        reason = f"sets nothing; set one of: {', '.join(ALLOCATOR.settings)}"
    elif isinstance(split, int) and split <= _LEAST_SPLIT_MIB:
        reason = f"max_split_size_mb is {split}; torch requires more than {_LEAST_SPLIT_MIB}"
    elif isinstance(power, int) and power & (power - 1):
        reason = f"roundup_power2_divisions is {power}; torch requires a power of two"
    elif isinstance(threshold, float) and threshold >= 1:
        reason = f"garbage_collection_threshold is {threshold}; torch requires a fraction below 1"
    elif "expandable_segments" in chosen and split is not None:
        reason = "max_split_size_mb has no effect on expandable segments; choose one of the two"
    elif "expandable_segments" in chosen and "garbage_collection_threshold" in chosen:
        reason = "garbage collection does not affect expandable segments; choose one of the two"
    if reason is not None:
        raise PlanError(f"'allocator': {reason}")


ALLOCATOR = Technique(
    name="allocator",
    does="configures how PyTorch's allocator rounds, splits and releases memory",
    precondition="none: results do not depend on memory addresses",
    proof="not needed",
    semantics=Semantics.SAME,
    place=Place.PROGRAM,
    reference="https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf",
    variables=_variables,
    variants=({"expandable_segments": True},),
    settings={
        "expandable_segments": Setting(
            default=False,
            what="let segments grow; not for programs that share tensors through CUDA IPC",
        ),
        "max_split_size_mb": Setting(
            default=0,
            what="MiB; larger blocks are never split; 0: all blocks may be split",
            least=0,
        ),
        "roundup_power2_divisions": Setting(
            default=0,
            what="steps between two powers of two to which requests are rounded up; 0: off",
            least=0,
        ),
        "garbage_collection_threshold": Setting(
            default=0.0,
            what="fraction of the memory above which unused blocks are released; 0: never",
            least=0,
        ),
    },
)
