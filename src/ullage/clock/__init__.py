"""How long kernels take on a GPU, as intervals of seconds, from published measurements.

>>> from ullage.gpus import find_gpu
>>> time = matrix_product(find_gpu("h100"), MatrixProduct(4096, 4096, 4096), "bfloat16")
>>> time.low_s < time.s < time.high_s
True
"""

from ullage.clock.duration import Duration
from ullage.clock.kernels import (
    attention_decode,
    attention_forward,
    collective,
    matrix_product,
    memory_bound,
)
from ullage.clock.work import Attention, Collective, Kind, MatrixProduct

__all__ = [
    "Attention",
    "Collective",
    "Duration",
    "Kind",
    "MatrixProduct",
    "attention_decode",
    "attention_forward",
    "collective",
    "matrix_product",
    "memory_bound",
]
