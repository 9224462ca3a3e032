"""Intercepts every read of a deferred CPU tensor.

Every operation passes a dispatch key that torch reserves for tests. Methods that access a tensor's
bytes without an operation are wrapped while something is deferred. The key is set for each thread;
threads that the program starts have it from their first operation on.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ullage.players.inside import torch_internals
from ullage.players.inside.import_hooks import on_import
from ullage.players.inside.patches import around

_KEY = "TESTING_ONLY_GenericWrapper"
_SET_KEY = "torch._C._dispatch_tls_set_dispatch_key_included"
_COMPOSITE = "CompositeImplicitAutograd"
_LOOKS = """
alias as_strided detach detach_ diagonal empty_like expand is_pinned lift_fresh new_empty
new_empty_strided new_full new_ones new_zeros ones_like permute rand_like randn_like _reshape_alias
select set_ set_data slice split split_with_sizes squeeze t transpose unbind unfold unsqueeze
_unsafe_view view zeros_like full_like
"""
"""Operations that read no value: views of the same bytes, or tensors with the same shape."""
_OPENINGS = ("numpy", "data_ptr", "untyped_storage", "tolist", "__dlpack__")
"""Methods that access a tensor's bytes without an operation."""
_WRAPS = "_make_wrapper_subclass"
"""Makes a tensor that wraps others; a DTensor does not use it, but needs a DeviceMesh."""


class Cover:
    """Intercepts operations and passes them to `follow`.

    Attributes:
        is_on: whether something is deferred.
    """

    def __init__(
        self,
        torch: ModuleType,
        *,
        follow: Callable[[Any, Any, Any], Any],
        read: Callable[[Any], None],
        read_everything: Callable[[], None],
    ) -> None:
        """`follow(op, args, kwargs)` returns an operation's result, or None if the operation should
        run as usual; `read(tensor)` and `read_everything()` execute deferred operations.
        """
        self.is_on = False
        self._torch = torch
        self._follow, self._read, self._read_everything = follow, read, read_everything
        self._include = torch_internals.find(torch, _SET_KEY)
        self._lock = threading.Lock()
        self._libraries: dict[str, Any] = {}
        self._whole: set[Any] = set()
        self._parted: set[Any] = set()
        self._own: dict[str, Any] = {}
        self._named: dict[str, Any] = {}
        self._is_ready = self._has_wrappers = False
        self._local = threading.local()

    def watch(self) -> None:
        """Intercepts the operations of other threads and of tensors that wrap others."""
        self._watch_threads()
        self._watch_wrappers()

    def _watch_threads(self) -> None:
        """Makes new threads intercept their operations from the first one on, because any of them
        may read a tensor that is deferred later.
        """
        run = getattr(threading.Thread, "_bootstrap_inner", None)
        if self._include is None or run is None:
            return

        start = threading.Thread.start

        @functools.wraps(start)
        def prepare_and_start(thread: threading.Thread) -> None:
            self._prepare()
            start(thread)

        @functools.wraps(run)
        def see_and_run(thread: threading.Thread) -> None:
            self._local.is_started = True
            self.settle()
            run(thread)

        threading.Thread.start = prepare_and_start  # type: ignore[method-assign,assignment]
        threading.Thread._bootstrap_inner = see_and_run  # type: ignore[attr-defined]

    def _watch_wrappers(self) -> None:
        """Intercepts operations of tensors that wrap others, from the first such tensor on."""
        tensor_type = self._torch.Tensor
        make = getattr(tensor_type, _WRAPS, None)
        if self._include is None or make is None:
            return

        def prepare_and_make(*args: Any, **kwargs: Any) -> Any:
            delattr(tensor_type, _WRAPS)
            self._expect_wrappers()
            return make(*args, **kwargs)

        def prepare_meshes(module: ModuleType) -> None:
            mesh_type = getattr(module, "DeviceMesh", None)  # none without torch.distributed
            if mesh_type is not None:
                mesh_type.__init__ = around(mesh_type.__init__, self._expect_wrappers)

        setattr(tensor_type, _WRAPS, staticmethod(prepare_and_make))
        on_import("torch.distributed.device_mesh", prepare_meshes)

    def _expect_wrappers(self, *_: Any, **__: Any) -> None:
        if not self._has_wrappers:
            self._has_wrappers = True
            if self._is_ready:
                self._see_each()

    def settle(self, *_: Any) -> None:
        """Intercepts this thread's operations only while necessary, from now on."""
        if self._include is None:
            return
        is_thread = getattr(self._local, "is_started", False)  # autograd's threads copy the caller
        # Torch runs no fallback under a mode.
        is_under_mode = bool(self._torch._C._len_torch_dispatch_stack())
        self._include(_KEY, (self.is_on or is_thread) and not is_under_mode)

    def turn_on(self) -> None:
        """Called when the first operation is deferred."""
        if self.is_on:
            return
        self._prepare()
        self.is_on = True
        tensor_type = self._torch.Tensor
        for name in _OPENINGS:
            self._own[name] = tensor_type.__dict__.get(name)
            read_first = around(getattr(tensor_type, name), lambda own, *_, **__: self._read(own))
            setattr(tensor_type, name, read_first)
        self.settle()

    def turn_off(self) -> None:
        """Called when nothing is deferred any longer; restores torch's methods."""
        if not self.is_on:
            return
        self.is_on = False
        for name, own in self._own.items():
            if own is None:
                delattr(self._torch.Tensor, name)
            else:
                setattr(self._torch.Tensor, name, own)
        self._own.clear()
        self.settle()

    def _prepare(self) -> None:
        if self._is_ready:
            return
        self._is_ready = True
        library_type = self._torch.library.Library
        looks = self._torch.library.fallthrough_kernel
        self._fallback = library_type("_", "IMPL")
        self._fallback.fallback(self._see, _KEY)
        mode = self._torch.utils._python_dispatch.TorchDispatchMode
        mode.__enter__ = around(mode.__enter__, self._begin_mode)
        mode.__exit__ = around(mode.__exit__, after=self.settle)
        self._seen = library_type("aten", "IMPL")
        for name in _LOOKS.split():
            packet = getattr(self._torch.ops.aten, name)
            for overload in packet.overloads():
                self._seen.impl(getattr(packet, overload), looks, _KEY)
        self._pass_by_all()
        if self._has_wrappers:
            self._see_each()

    def _see_each(self) -> None:
        """Registers every operation by its name. For a tensor that wraps others torch runs no
        fallback, and fails if an operation has no kernel of its own.
        """
        c = self._torch._C
        for name in c._dispatch_get_all_op_names():
            if not self._is_composite(name) and not c._dispatch_has_kernel_for_dispatch_key(
                name, _KEY
            ):
                namespace, _, rest = name.partition("::")
                see = functools.partial(self._see_named, name)
                self._library(namespace).m.impl(rest, _KEY, see)

    def _see_named(self, name: str, *args: Any, **kwargs: Any) -> Any:
        op = self._named.get(name)
        if op is None:
            namespace, _, rest = name.partition("::")
            packet, _, overload = rest.partition(".")
            of = getattr(getattr(self._torch.ops, namespace), packet)
            op = self._named[name] = getattr(of, overload or "default")
        return self._see(op, *args, **kwargs)

    def _pass_by_all(self) -> None:
        """Stops intercepting all composite operations. This must happen before other threads exist,
        because a thread might be choosing the kernel of such an operation at this moment.
        """
        has = self._torch._C._dispatch_has_kernel_for_dispatch_key
        for name in self._torch._C._dispatch_get_registrations_for_dispatch_key(_COMPOSITE):
            if not has(name, "CPU") and not has(name, _KEY):
                namespace, _, rest = name.partition("::")
                looks = self._torch.library.fallthrough_kernel
                self._library(namespace).m.impl(rest, _KEY, looks)

    def _library(self, namespace: str) -> Any:
        if namespace not in self._libraries:
            self._libraries[namespace] = self._torch.library.Library(namespace, "IMPL")
        return self._libraries[namespace]

    def _see(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """Intercepts every operation while something is deferred."""
        if op not in self._whole:
            if self._is_composite(op.name()):  # its parts are intercepted one by one
                self._pass_by(op)
                return op(*args, **kwargs)
            self._whole.add(op)
        result = self._follow(op, args, kwargs)
        return self.unseen(op, args, kwargs) if result is None else result

    def unseen(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operation without interception."""
        self._include(_KEY, False)  # noqa: FBT003
        try:
            return op(*args, **kwargs)
        finally:
            self.settle()

    def _pass_by(self, op: Any) -> None:
        """Stops intercepting an operation that was defined after the others."""
        with self._lock:
            if op in self._parted:
                return  # another thread did it
            fallthrough = self._torch.library.fallthrough_kernel
            self._library(op.namespace).impl(op, fallthrough, _KEY)
            self._parted.add(op)

    def _is_composite(self, name: str) -> bool:
        has = self._torch._C._dispatch_has_kernel_for_dispatch_key
        return has(name, _COMPOSITE) and not has(name, "CPU")

    def _begin_mode(self, mode: Any) -> None:
        """A mode that may read tensors begins: executes all deferred operations. A fake mode is
        exempt, because its tensors have no bytes to read.
        """
        if getattr(mode, "allow_non_fake_inputs", True):
            self._read_everything()
        if self._include is not None:
            self._include(_KEY, False)  # noqa: FBT003
