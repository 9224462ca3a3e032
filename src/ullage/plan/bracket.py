"""The fastest rung of a ladder that fits, found with few runs.

search = Bracket(len(ladder), guess)
while places := search.next(2):
    search.note(...)
search.found                        # the first that was seen to fit; None: none does
"""

from __future__ import annotations

# Rungs before the first that fits which are tried as well: what is seen is not always in the order
# of what was expected.
_BEYOND = 2


class Bracket:
    """Which rungs were tried, and which to try next.

    Args:
        count: how many there are, the fastest first.
        guess: where the first that fits is expected.
    """

    def __init__(self, count: int, guess: int) -> None:
        self.seen: dict[int, bool] = {}
        self._count = count
        self._guess = min(max(guess, 0), count - 1)

    @property
    def found(self) -> int | None:
        """The fastest that was seen to fit."""
        return min((place for place, fits in self.seen.items() if fits), default=None)

    def note(self, place: int, *, fits: bool) -> None:
        """What was seen."""
        self.seen[place] = fits

    def next(self, width: int) -> list[int]:
        """Up to `width` rungs to try together; none: it is found."""
        if not self.seen:
            return self._unseen((self._guess, self._guess - 1), width)
        found = self.found
        if found is None:
            last = max(self.seen)
            stride = max(1, last - self._guess)
            wanted = (min(last + stride, self._count - 1), min(last + 3 * stride, self._count - 1))
            return self._unseen(wanted, width)
        low = max((place for place in self.seen if place < found), default=-1)
        if found - low > 1:
            if low == -1:  # nothing faster was tried: gallop
                stride = max(1, self._guess - found)
                return self._unseen((max(found - stride, 0), max(found - 3 * stride, 0)), width)
            gap = found - low
            return self._unseen((low + gap // 2, low + (gap * 3 + 3) // 4), width)
        beyond = [place for place in range(found - 1, found - 2 - _BEYOND, -1) if place >= 0]
        return self._unseen(beyond, width)

    def _unseen(self, places: tuple[int, ...] | list[int], width: int) -> list[int]:
        kept = dict.fromkeys(one for one in places if 0 <= one < self._count)
        return [one for one in kept if one not in self.seen][:width]
