"""Which version of a model a request gets: as many of each as its share says.

    versions = Versions({"llama": {"llama-v1": 90, "llama-v2": 10}}, is_served)
    versions.choose("llama")            # "llama-v1", and "llama-v2" once in ten times

A version that no engine takes requests for is left out, and so engines are replaced one after the
other. This is smooth weighted round robin: of any N requests a version gets its share of N, give or
take one, where all versions are served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


class Versions:
    """The versions of models.

    Args:
        shares: by model the weight of each of its versions.
        is_served: whether an engine takes requests for a version.
    """

    def __init__(
        self, shares: Mapping[str, Mapping[str, float]], is_served: Callable[[str], bool]
    ) -> None:
        self._shares = {model: dict(weights) for model, weights in shares.items()}
        self.models = frozenset(shares)  # that have versions
        self._is_served = is_served
        self._credits = {
            model: dict.fromkeys(weights, 0.0) for model, weights in self._shares.items()
        }

    def choose(self, model: str) -> str:
        """The version for the next request of a model; the model itself where it has none."""
        shares = self._shares.get(model)
        if shares is None:
            return model
        served = {name: share for name, share in shares.items() if self._is_served(name)} or shares
        credits = self._credits[model]
        for name, share in served.items():
            credits[name] += share
        chosen = max(served, key=lambda name: credits[name])
        credits[chosen] -= sum(served.values())
        return chosen
