"""The cost of a generating program's cache of keys and values: bytes for each token.

Where the model is called without gradients, each call of the outermost module is a step, and makes
one token for each sequence of the batch. What the cache is longer by after each is what a token
costs; its whole length at that rate is how many tokens are in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ullage.explain.moments.course import Course, Phase
from ullage.explain.moments.growth import Growth
from ullage.explain.owners.ownership import code_of
from ullage.ground.protocol.plain import figure
from ullage.log.model import Category, UInt8Array
from ullage.log.replay import Replay


@dataclass(frozen=True, slots=True)
class TokenGrowth:
    """A cache that grows with each token.

    Attributes:
        token_bytes: what one more token of each sequence takes.
        cache_bytes: what the growing blocks had after the last step, as asked for.
        sites: numbers in `Sites.names` of the lines that make it.
        is_replaced: whether each token's tensor takes the place of a smaller one.
    """

    token_bytes: int
    cache_bytes: int
    sites: tuple[int, ...]
    is_replaced: bool

    @figure
    def num_tokens(self) -> int:
        """The number of tokens that the cache held at the end."""
        return round(self.cache_bytes / self.token_bytes)

    def bytes_at(self, num_tokens: int) -> int:
        """The bytes that the cache takes with this many tokens."""
        return self.token_bytes * num_tokens


def find_token_growth(
    growth: Sequence[Growth], replay: Replay, category: UInt8Array, course: Course
) -> TokenGrowth | None:
    """The growth with each token; None where nothing grows, or where it is not a program that
    generates: an optimizer or gradients are not part of that.
    """
    is_forward = course.phase == Phase.FORWARD
    if not course.has_phases or course.grad[is_forward].any() or not is_forward.any():
        return None
    cache = code_of(Category.KV_CACHE)
    caches = [
        site
        for site in growth
        if site.is_replaced or (site.blocks and category[site.blocks[-1]] == cache)
    ]
    rate = round(sum(site.bytes_per_step for site in caches))
    if not rate:
        return None
    blocks = np.unique([block for site in caches for block in site.blocks])
    return TokenGrowth(
        token_bytes=rate,
        cache_bytes=int(replay.blocks.requested_bytes[blocks].sum()),
        sites=tuple(cache.site for cache in caches),
        is_replaced=all(cache.is_replaced for cache in caches),
    )
