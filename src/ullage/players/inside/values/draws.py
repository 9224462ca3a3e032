"""Random numbers on the device: drawn on the CPU, from what the program asked for.

Any number that the operation can give is right. The seed is that of the program's own generator on
the device, and the place that it has reached: the same state draws the same numbers again, as
where activations are computed twice.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ullage.players.inside.library import ASSUMED
from ullage.players.inside.values.cpu_ops import Beside
from ullage.players.inside.values.known import Known
from ullage.players.inside.values.policy import Policy
from ullage.players.inside.values.uniform import base_name

_FILLS = frozenset({"uniform", "exponential", "geometric"})  # normal numbers stand for data
_INTEGERS = frozenset({"randint", "randint_like", "random"})
_OF_VALUES = frozenset({"bernoulli", "poisson", "multinomial"})
NAMES = _FILLS | _INTEGERS | _OF_VALUES | {"randperm"}
"""Operations, without the underscore of the one in place."""
_SEED_BITS = 63
_STRIDE = 1_000_003  # between generators' seeds: many places of one, before the next one's begin


class Draws:
    """Gives random results values; one for the process."""

    def __init__(self, torch: ModuleType, beside: Beside, policy: Policy) -> None:
        self._torch = torch
        self._beside = beside
        self._policy = policy
        self._generator = torch.Generator(device="cpu")

    def draw(self, op: Any, args: Any, kwargs: Any, known: Known | None, result: Any) -> bool:
        """After one of NAMES; False: its result is large, or it draws by unknown values."""
        if not isinstance(result, self._torch.Tensor) or not self._beside.is_small(result):
            return False
        if result.is_floating_point() and not self._policy.is_plausible:
            return False
        if self._torch.cuda.is_current_stream_capturing():
            return False  # a generator says nothing of its state then, and each replay draws anew
        name = base_name(op)
        self._generator.manual_seed(self._state(kwargs.get("generator"), result.device))
        values = self._values(name, args, known, result)
        if values is None:
            return False
        self._beside.store(result, values.to(result.dtype), ASSUMED)
        return True

    def _state(self, generator: Any, device: Any) -> int:
        """A seed made of that of a generator, and of how far it has come."""
        if generator is None:
            generator = self._torch.cuda.default_generators[device.index]
        seed, offset, *_ = generator.get_state().view(self._torch.int64).tolist()
        return int((seed * _STRIDE + offset) % (1 << _SEED_BITS))

    def _values(self, name: str, args: Any, known: Known | None, result: Any) -> Any:
        """On the CPU, of the result's size. None: what they are drawn by is unknown."""
        torch, generator = self._torch, self._generator
        if name == "randperm":
            return torch.randperm(result.numel(), generator=generator, device="cpu")
        if name in _INTEGERS:
            low, high = self._range(name, args, result.dtype)
            size = result.size()
            return torch.randint(low, max(high, low + 1), size, generator=generator, device="cpu")
        numbers = [arg for arg in args if isinstance(arg, (bool, int, float))]
        if name in _OF_VALUES and not (name == "bernoulli" and numbers):
            given = known.inputs.get(id(args[0])) if known is not None and args else None
            return (
                None
                if given is None
                else getattr(torch, name)(given, *numbers, generator=generator)
            )
        empty = torch.empty(result.size(), dtype=result.dtype, device="cpu")
        return getattr(empty, f"{name}_")(*numbers, generator=generator)

    def _range(self, name: str, args: Any, dtype: Any) -> tuple[int, int]:
        """The range of random integers: low, and the first that is too high."""
        bounds = [arg for arg in args if isinstance(arg, int) and not isinstance(arg, bool)][:2]
        if len(bounds) == 2:
            return bounds[0], bounds[1]
        highest = 2 if dtype is self._torch.bool else 128
        return 0, bounds[0] if bounds else highest
