"""A guard as a decorator.

@ullage.guard(model, optimizer)
def train_step(batch): ...

for batch in loader:
    loss = train_step(batch)
"""

from __future__ import annotations

import atexit
import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ullage.ground.errors import SpecError

if TYPE_CHECKING:
    from ullage.act.guard.guard import Guard

Result = TypeVar("Result")
_UNRUN = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def decorated(guard: Guard, fn: Callable[..., Result]) -> Callable[..., Result]:
    """A function whose calls are steps of a guard; it has the guard as `guard`, and `close`.

    Raises:
        SpecError: the call of a generator or an async function is not a step.
    """
    refuse_unrun(fn)

    @functools.wraps(fn)
    def step(*batch: Any, **keywords: Any) -> Result:
        if not guard.is_open:
            guard.__enter__()
            atexit.register(close)
        return guard.step(fn, *batch, **keywords)

    def close() -> None:
        atexit.unregister(close)
        if guard.is_open:
            guard.__exit__(None, None, None)

    step.guard, step.close = guard, close  # type: ignore[attr-defined]
    return step


def refuse_unrun(fn: Any) -> None:
    """Raises SpecError for a function that has not run when its call ends."""
    code = getattr(inspect.unwrap(getattr(fn, "func", fn)), "__code__", None)
    if code is not None and code.co_flags & _UNRUN:
        raise SpecError(
            f"{code.co_name} is a generator or async function, which has not run when its call "
            "ends; guard a plain function that it calls"
        )
