"""How long a tenant's answers are: a quantile of its last ones.

    lengths = Lengths(quantile=0.9)
    lengths.observe("chat", 130)
    lengths.predict("chat", max_tokens=512)     # 512: so few are not a history

Until there is a history, and where a tenant's answers are cut short by `max_tokens`, that bound is
the prediction: it can be too careful, never too small.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import Final

_LAST: Final = 256
_FEWEST: Final = 20


class _History:
    """The last answers of a tenant, in their order and sorted."""

    def __init__(self) -> None:
        self.recent: deque[int] = deque()
        self.ordered: list[int] = []

    def add(self, tokens: int) -> None:
        """Takes an answer; the oldest of too many goes."""
        self.recent.append(tokens)
        insort(self.ordered, tokens)
        if len(self.recent) > _LAST:
            del self.ordered[bisect_left(self.ordered, self.recent.popleft())]


class Lengths:
    """Predicts the tokens of answers.

    Args:
        quantile: share of a tenant's answers that are no longer than predicted; None: every answer
            is predicted to reach its bound.
        scale: what a prediction is multiplied by; other than 1 only to test a wrong predictor.
    """

    def __init__(self, quantile: float | None = 0.9, *, scale: float = 1.0) -> None:
        self._quantile = quantile
        self._scale = scale
        self._histories: dict[str, _History] = {}

    def observe(self, tenant: str, tokens: int) -> None:
        """Takes the length of an answer that ended by itself."""
        self._histories.setdefault(tenant, _History()).add(tokens)

    def predict(self, tenant: str, max_tokens: int) -> int:
        """Tokens that an answer takes: at least 1, at most `max_tokens`; 0 of what has no answer in
        tokens, as an embedding.
        """
        if not max_tokens:
            return 0
        history = self._histories.get(tenant)
        if self._quantile is None or history is None or len(history.ordered) < _FEWEST:
            return max_tokens
        rank = min(len(history.ordered) - 1, int(self._quantile * len(history.ordered)))
        return max(1, min(max_tokens, round(history.ordered[rank] * self._scale)))
