"""How long a step takes to read the cache, by the way that transformers reads it without flash
attention: counted, as no grid of a launch tells how much of the cache a kernel reads.

The keys and values of all requests of a step are gathered into one tensor and repeated for each
query head, and attention runs over all of them with a mask: a request's queries pay for all keys.

Source: transformers 5.23, generation/continuous_batching/cache.py (update), integrations/
sdpa_paged.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ullage.clock.costs.traffic import Traffic, moved
from ullage.clock.kernels import attention_forward
from ullage.clock.work import Attention
from ullage.facts.gpus import Gpu

_ELEMENT: Final = 2


@dataclass(frozen=True, slots=True)
class ReadTimes:
    """The seconds above those of a step that reads nothing.

    Attributes:
        gpu: the GPU.
        layers, heads, kv_heads, head_dim: of the model.
    """

    gpu: Gpu
    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    def seconds(self, queries: int, read: int) -> float:
        """The seconds of a step of this many queries that reads this many tokens of the cache.

        Counts: keys and values gathered (read and written), repeated for each query head and read
        by attention; its mask; its operations over all pairs.
        Ignores: windows, which are read as if whole. Error: not compared with a GPU.
        Source: derived here from the files named above.
        """
        if read == 0:
            return 0.0
        vectors = _ELEMENT * self.head_dim * read
        gathered = 2 * 2 * self.kv_heads * vectors
        repeated = 2 * (self.kv_heads + 2 * self.heads) * vectors
        mask = 2 * _ELEMENT * queries * read
        floor = moved(self.gpu, Traffic.of(float(gathered + repeated + mask))).s
        pairs = self._attention(queries, queries + read) - self._attention(queries, queries)
        return self.layers * (floor + max(0.0, pairs))

    def _attention(self, queries: int, keys: int) -> float:
        """All pairs are computed, masked or not: twice what a causal kernel has."""
        work = Attention(1, self.heads, self.heads, self.head_dim, queries, keys)
        return attention_forward(self.gpu, work, "bfloat16").s
