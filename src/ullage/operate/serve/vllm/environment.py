"""The variables under which vLLM starts in this process; set before it is imported.

prepare()
"""

from __future__ import annotations

import os
from typing import Final

_NEEDED: Final = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine runs in this process
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
# Kernels that are compiled for each shape with a whole CUDA toolkit, for minutes. vLLM has others
# for the same: its own sampler, and CUTLASS for products in float8 with scales of blocks.
_COMPILED: Final = {
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER": "0",
    "VLLM_USE_DEEP_GEMM": "0",
}


def prepare() -> None:
    """Sets them; of kernels that are compiled, those that the user has not set."""
    os.environ.update(_NEEDED)
    for name, value in _COMPILED.items():
        os.environ.setdefault(name, value)
