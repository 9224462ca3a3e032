"""Allocator settings that are known not to work with features that the program uses, as far as a
snapshot shows them.

find_conflicts(snapshot)[Family.EXPANDABLE]     the reasons against expandable segments
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ullage.explain.whatif.settings import Family
from ullage.log.snapshot import Snapshot

# A snapshot cannot show these: memory is shared after its allocation, and by other libraries.
UNSEEN: Final = (
    "expandable segments cannot be told from a snapshot to be safe where tensors are handed to "
    "other processes (CUDA IPC: torch.multiprocessing, custom all-reduce of servers, other "
    "libraries' cudaIpcGetMemHandle), under WSL2, or on vGPUs without virtual memory management"
)

_PRIVATE_POOLS: Final = (
    "the program has private pools (CUDA graphs or torch.cuda.MemPool): expandable segments do not "
    "work in a pool with an allocator of its own (pytorch issue 147851), and were switched off "
    "and on again for graphs (pytorch pull requests 128068, 194767)"
)

# Part of a file's or function's name in a stack -> why expandable segments cannot be used.
_SIGNS: Final = {
    "custom_all_reduce": "a custom all-reduce shares its buffers by cudaIpcGetMemHandle, which "
    "fails for expandable segments (vllm issue 42609)",
    "cumem.py": "vLLM's sleep mode has its own allocator in a memory pool, which does not go with "
    "expandable segments (pytorch issue 147851)",
    "torch_memory_saver": "torch_memory_saver replaces the allocator's calls of cudaMalloc, which "
    "expandable segments do not make",
    "reduce_tensor": "tensors are handed to other processes (CUDA IPC)",
    "rebuild_cuda_tensor": "tensors come from other processes (CUDA IPC)",
    "ipc_collect": "tensors are shared with other processes (CUDA IPC)",
    "_share_cuda_": "tensors are handed to other processes (CUDA IPC)",
}


def find_conflicts(snapshot: Snapshot) -> Mapping[Family, tuple[str, ...]]:
    """The reasons against each family of settings; a family without any is not in the mapping."""
    reasons = []
    if len(snapshot.pools) > 1:
        reasons.append(_PRIVATE_POOLS)
    frames = snapshot.stacks.frames
    names = {*frames.file, *frames.function}
    reasons += [reason for sign, reason in _SIGNS.items() if any(sign in name for name in names)]
    return {Family.EXPANDABLE: tuple(dict.fromkeys(reasons))} if reasons else {}
