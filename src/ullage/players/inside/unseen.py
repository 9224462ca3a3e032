"""One guard around what ullage does inside the program, which neither sees it nor gets its errors.

Function modes, dispatch modes with their proxies, and record functions are the program's own, so
they are off meanwhile, and a profile does not see what it takes of the host's memory. Dynamo skips
this package (steps/compiled.py).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ullage.players.inside import library, torch_internals
from ullage.players.inside.weights.deferred_storage import TooLargeToReadError


class _Thread(threading.local):
    is_unrecorded = False


class Unseen:
    """Runs ullage's code. One instance per process."""

    def __init__(self, torch: ModuleType, note: Callable[[str, Exception], None]) -> None:
        """`note(name, error)` is called with an error, which the program does not get, and the name
        of the function that raised it.
        """
        self._torch, self._thread = torch, _Thread()
        self._note = note
        self._without_functions = torch._C.DisableTorchFunction
        self._num_modes = torch._C._len_torch_dispatch_stack
        self._is_included = torch._C._dispatch_tls_is_dispatch_key_included
        self._early_modes = torch._C.DispatchKey.PreDispatch
        record = torch_internals.find(torch, "torch._C._autograd._enable_record_function")
        asked = torch_internals.find(torch, "torch._C._autograd._profiler_enabled")
        self._is_profiled: Callable[[], bool] = asked or bool
        self._record: Callable[[bool], None] = record or (lambda _is_on: None)

    def run(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """The result of a function; None if it raised an error, which is noted under the name."""
        hides = library.is_present and self._is_profiled()
        if hides:
            library.hide_host_memory(1)
        try:
            with self._without_functions():
                return self.call_unrecorded(self._run_without_modes, function, args)
        except TooLargeToReadError:
            raise  # a message for the user
        except Exception as error:  # the program may be in any state
            self._note(name, error)
            return None
        finally:
            if hides:
                library.hide_host_memory(-1)

    def guard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as the program may be given it: a hook, a callback."""
        return functools.wraps(function)(functools.partial(self.run, function.__name__, function))

    def call_unrecorded(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function of the program once more, or one of ours, which no profile is to see."""
        is_outer = not self._thread.is_unrecorded
        if is_outer:
            self._thread.is_unrecorded = True
            self._record(False)  # noqa: FBT003
        try:
            return function(*args, **kwargs)
        finally:
            if is_outer:
                self._thread.is_unrecorded = False
                self._record(True)  # noqa: FBT003

    def has_modes(self) -> bool:
        """True if the program, or a compiler, watches the operations of this thread."""
        return bool(self._num_modes() or self._is_included(self._early_modes))

    def _run_without_modes(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if not self.has_modes():
            return function(*args)
        with self._torch.utils._python_dispatch._disable_current_modes():
            return function(*args)
