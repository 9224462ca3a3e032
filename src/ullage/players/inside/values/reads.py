"""Host reads: the answers for values that no kernel computed."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ullage.players.inside import library
from ullage.players.inside.library import ASSUMED, Uniformity
from ullage.players.inside.values.cpu_ops import Beside
from ullage.players.inside.values.policy import Policy


class Reads:
    """Makes the phantom answer reads by the policy. One instance per process.

    Attributes:
        answer: the number of the current read, as in the report; empty: there are several.
    """

    def __init__(self, torch: ModuleType, beside: Beside, policy: Policy) -> None:
        self.answer = ""
        self._torch = torch
        self._beside = beside
        self._policy = policy
        aten = torch.ops.aten
        self._item = aten._local_scalar_dense.default
        self._copy, self._convert = aten.copy_.default, aten._to_copy.default
        self.ops = {self._item, self._copy, self._convert}

    def expect(self, op: Any, args: Any, kwargs: Any) -> None:
        """Called before an operation of `ops`: prepares the answer if it copies unknown values to
        the host.
        """
        self.answer = ""
        source, dtype = self._source(op, args, kwargs)
        if source is None or not self._beside.has_address(source) or not source.numel():
            return
        raw, mark = self._beside.read(source) if self._beside.is_small(source) else (None, 0)
        if raw is not None:
            if mark == ASSUMED and source.numel() == 1:
                value = self._beside.view(raw, source).item()
                self.answer = f"{value:.6g}" if isinstance(value, float) else str(value)
            return
        number = self._beside.uniform.of(source)
        self._beside.uniform.decide(source, why=Uniformity.READ)
        value = self._policy.cast(number.value, dtype)
        if value is None:
            return
        self.answer = f"{value:.6g}" if dtype.is_floating_point else str(int(value))
        is_true = number.uniformity is Uniformity.TRUE
        num_bytes = source.numel() * dtype.itemsize
        if (value or is_true) and (is_true or self._policy.is_answered(dtype, num_bytes)):
            element = self._policy.element(value, dtype)
            library.expect_element(element, len(element), int(is_true))

    def packed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The arguments of a copy to the host. A copy packs non-contiguous tensors internally,
        where they cannot be intercepted. Here a separate operation packs them, with the same
        memory.
        """
        position = 1 if func is self._copy else 0
        source = args[position]
        device = args[0].device if func is self._copy else kwargs.get("device")
        if device is None or device.type != "cpu" or not self._beside.is_small(source):
            return args
        if self._beside.span(source) == source.numel() * source.element_size():
            return args
        dtype = args[0].dtype if func is self._copy else kwargs.get("dtype") or source.dtype
        return (*args[:position], source.to(dtype).contiguous(), *args[position + 1 :])

    def _source(self, op: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The device tensor that is copied to the host, and its type there; None: there is none."""
        if op is self._item:
            return args[0], args[0].dtype
        to = args[0].device if op is self._copy else kwargs.get("device")
        if to is None or to.type != "cpu":
            return None, None
        if op is self._copy:
            return args[1], args[0].dtype
        return args[0], kwargs.get("dtype") or args[0].dtype
