"""Values that programs branch on: small integers, flags and scalars, computed on the CPU.

Kernels do not run, so a mask that a kernel made would be all zeros. If every input of an operation
is small and the phantom knows its bytes, the operation also runs on the CPU, and its result is
written to the device's block. Later reads (item, bool, a copy) get the true value. All other values
stay unknown.

If the output *shape* of an operation depends on an unknown value (nonzero, unique, a boolean
index), the worst case is assumed and listed with its line, and later reads of the input agree with
it. All other unknown values get the policy's numbers (policy.py, docs/reference/values.md).

None of this raises an exception in the program: a value that cannot be followed stays unknown.

Operations are intercepted at a dispatch key that torch reserves for tests and puts before all
others. A TorchDispatchMode is not possible, because autograd and composite operations check whether
one is active and then allocate differently. Backward is not followed, except for recomputed
forwards and the element counts of boolean indices.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ullage.players.inside import library, torch_internals
from ullage.players.inside.import_hooks import on_import
from ullage.players.inside.library import Uniformity
from ullage.players.inside.owners.source_location import HostReads, ShapeReads
from ullage.players.inside.part import Part
from ullage.players.inside.patches import Patches
from ullage.players.inside.unseen import Unseen
from ullage.players.inside.values import choices, draws
from ullage.players.inside.values.assume import Assumed
from ullage.players.inside.values.choices import Choices
from ullage.players.inside.values.counted import Counted
from ullage.players.inside.values.cpu_ops import Beside
from ullage.players.inside.values.draws import Draws
from ullage.players.inside.values.known import Known
from ullage.players.inside.values.policy import Policy
from ullage.players.inside.values.reads import Reads
from ullage.players.inside.values.routers import Routers
from ullage.players.inside.values.suspects import suspicions
from ullage.players.inside.values.uniform import base_name
from ullage.players.inside.weights.weights import SkippedWeights

_KEY = "TESTING_ONLY_GenericMode"
_SET_KEY = "torch._C._dispatch_tls_set_dispatch_key_included"
_OUR_KEYS = (
    _KEY,
    "TESTING_ONLY_GenericWrapper",
)  # the other one belongs to players/inside/weights/dispatch_hook.py
_SEEN = """
arange full zeros ones scalar_tensor eye zeros_like ones_like full_like new_zeros new_ones new_full
nll_loss_forward nll_loss2d_forward index_add index_add_ index_copy index_copy_ index_fill
index_fill_ scatter_add scatter_add_ put_ eq ne lt le gt ge eq_ ne_ lt_ le_ gt_ ge_ logical_and
logical_or logical_xor logical_not logical_and_ logical_or_ logical_not_ bitwise_and bitwise_or
bitwise_xor bitwise_not bitwise_and_ bitwise_or_ isin isnan isinf add sub mul div floor_divide
remainder rsub pow neg abs add_ sub_ mul_ div_ floor_divide_ neg_ maximum minimum clamp clamp_
clamp_min clamp_max sign ceil floor round sum any all max min amax amin argmax argmin cumsum cumprod
prod dot vdot count_nonzero mean equal cat stack where index index_put_ index_put gather scatter
scatter_ index_select masked_fill masked_fill_ masked_select masked_scatter masked_scatter_
masked_scatter_backward _index_put_impl_ tril triu repeat repeat_interleave flip roll clone sort
topk bincount histc nonzero _unique2 unique_dim unique_consecutive constant_pad_nd searchsorted
bucketize embedding copy_ _to_copy fill_ zero_ normal_ uniform_ _amp_update_scale_ _foreach_norm
_foreach_mul_ _foreach_add_ _foreach_copy_ _foreach_zero_ _local_scalar_dense logical_xor_ isposinf
isneginf exp exp2 expm1 log log10 log2 log1p sqrt rsqrt tanh sigmoid reciprocal _softmax
_log_softmax _sample_dirichlet xlogy lgamma digamma erf sin cos bernoulli bernoulli_ poisson
multinomial randperm randint random_ exponential_ geometric_ median mode
_amp_foreach_non_finite_check_and_unscale_
"""
"""Operations with their own kernels that make, copy or read values that programs branch on."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The known inputs of an operation before it runs; None: none is known."""

    inputs: Known | None


_NOTHING, _LOST = _Prepared(None), _Prepared(None)


class Values(Part):
    """Intercepts every operation of the main thread while it is not paused.

    Args:
        torch, weights, unseen: of the process.
        assumed: of values that are not known.
        shapes: where those are noted that depend on such values.
        is_following: whether small values are followed; else all counts are assumed.
    """

    def __init__(
        self,
        torch: ModuleType,
        weights: SkippedWeights,
        assumed: Assumed,
        unseen: Unseen,
        shapes: ShapeReads,
        *,
        is_following: bool,
    ) -> None:
        self.shapes = shapes
        self._host_reads = HostReads()
        self._assumed = assumed
        self._remarks: list[str] = []
        self.is_tracing = False  # the compiler's tensors have no bytes
        self._torch = torch
        self._weights = weights
        self.policy = Policy(torch, assumed)
        self.unseen = unseen
        self.beside = Beside(torch, self.policy)
        self.reads = Reads(torch, self.beside, self.policy)
        self._choices = Choices(torch, self.beside)
        self._draws = Draws(torch, self.beside, self.policy)
        self._routers = Routers(torch, self.beside, assumed, self.shapes.note)
        self._counted = Counted(torch, self.beside, assumed, self._routers, self.shapes.note)
        self._include = torch_internals.find(torch, _SET_KEY)
        key = torch._C._dispatch_key_parse(_KEY)
        self._keys_after = torch._C._dispatch_keyset_full_after(key)
        self._is_installed = self._is_active = False
        self._is_following = is_following
        self._is_backward = self._is_updating = False
        self._num_sparing = 0
        self._awaited: Any = None
        aten = torch.ops.aten
        self._copies = {aten._to_copy.default, aten.copy_.default}
        self._topk = aten.topk.default
        self._histogram = aten.histc.default  # the CPU has no kernel for integers
        self._counts = {
            *(aten.sum.dim_IntList, aten.bincount.default, self._histogram),
            *(aten.scatter_add.default, aten.scatter_add_.default),
        }
        self._equal = aten.equal.default
        self._finds = self._counted.ops
        self._chooses: set[Any] = set()
        self._drawn: set[Any] = set()

    def install(self, _patches: Patches) -> None:
        """Starts, where this torch has the key."""
        library_type = self._torch.library.Library
        fallback = getattr(library_type, "fallback", None)
        if self._include is None or fallback is None:
            self._remarks.append(
                f"torch {self._torch.__version__} offers no way to follow small values: masks, "
                "counts and flags that kernels make read as zeros"
            )
            return
        self._rest = library_type("_", "IMPL")
        fallback(self._rest, self._torch.library.fallthrough_kernel, _KEY)
        self._seen = library_type("aten", "IMPL")
        followed = {*self._finds, *(self._followed() if self._is_following else ())}
        self._chooses = {op for op in followed if base_name(op) in choices.NAMES}
        self._drawn = {op for op in followed if base_name(op) in draws.NAMES}
        for op in self._weights.ops | followed:
            self._seen.impl(op, functools.partial(self._follow, op), _KEY, with_keyset=True)
        _let_pass(self._torch._ops, self._torch._C)
        self._is_installed = True
        on_import("torch.distributed._functional_collectives", self._expect_awaited)
        self.go_on()

    def begin(self) -> None:
        """Hears of what the host reads; a forked process was let alone until it used a device."""
        if not self._is_active:
            self.go_on()
        library.on_host_read(self.unseen.guard(self._note_read))

    def _note_read(self, num_bytes: int) -> None:
        warning = self._host_reads.note(num_bytes, self.reads.answer)
        if warning is not None and warning not in self._remarks:
            self._remarks.append(warning)
            print(f"ullage: {warning}", file=sys.stderr)

    def end_step(self, count: int) -> None:
        """A step has ended: unknown numbers fall."""
        self._host_reads.end_step()
        self.policy.num_steps = count

    def note_exception(self, error: BaseException) -> None:
        """An unknown value may be why the program ends."""
        if not isinstance(error, self._torch.OutOfMemoryError):
            assumed = self._assumed if self._is_following else None
            self._remarks += suspicions(error, self._host_reads, self.shapes, assumed)

    def fields(self) -> dict[str, Any]:
        """The values that the host read."""
        answer = self.policy.words if self._is_following else "answered as zeros"
        return {"basis": self._host_reads.basis(answer)}

    def remarks(self) -> list[str]:
        """The remarks on what is wrong with values."""
        return self._remarks

    def _followed(self) -> set[Any]:
        """The operations to intercept; composite ones are not among them, because their parts are
        intercepted.
        """
        packets = (getattr(self._torch.ops.aten, name, None) for name in _SEEN.split())
        overloads = (
            getattr(packet, overload)
            for packet in packets
            if packet is not None
            for overload in packet.overloads()
            if "out" not in overload
        )
        return {op for op in overloads if self._is_whole(op.name())}

    def _is_whole(self, name: str) -> bool:
        """True if an operation has a kernel of its own."""
        c = self._torch._C
        return c._dispatch_has_kernel(name) and not c._dispatch_has_kernel_for_dispatch_key(
            name, "CompositeImplicitAutograd"
        )

    def prepare(self) -> None:
        """Stops intercepting; operations are assumed not to write to known tensors."""
        self._switch(is_active=False)

    def leave(self) -> None:
        """Stops, in a forked process."""
        self.prepare()

    def remove(self) -> None:
        """Stops intercepting for good."""
        self.prepare()
        self._is_installed = False

    def go_on(self) -> None:
        """Intercepts operations again."""
        self._switch(is_active=self._is_installed)

    def begin_backward(self) -> None:
        """Intercepts only the operations that matter in backward."""
        self._is_backward = True
        library.follow_thread(1)  # like autograd's own threads

    def end_backward(self) -> None:
        """Intercepts all operations again."""
        self._is_backward = False
        self.go_on()

    def begin_update(self, *losses: Any) -> None:
        """Follows the numbers of an optimizer, such as step counts. Its kernels are assumed to read
        them; what else they write was forgotten.

        losses: of a closure that it has called. It searches, like LBFGS, and branches on the loss
            and on vectors as large as the model: the loss falls, so that the search goes on.
        """
        self._is_updating, self.policy.is_search = True, bool(losses)
        self.policy.num_evaluations += len(losses)
        for loss in self.beside.tensors(losses):
            if self.beside.has_address(loss):
                self.beside.forget(loss)
        library.follow_thread(self._thread_state())

    def end_update(self) -> None:
        """Has kernels write to known tensors again."""
        self._is_updating = self.policy.is_search = False
        library.follow_thread(self._thread_state())

    def _switch(self, *, is_active: bool) -> None:
        if not self._is_installed:
            return
        self._is_active = is_active
        library.follow_thread(self._thread_state())
        self._include(_KEY, is_active)

    def is_following_here(self) -> bool:
        """True if this thread's operations are followed: the main thread's, outside of backward."""
        return (
            self._is_following
            and self._is_active
            and not (self.is_tracing or self._is_backward)
            and threading.current_thread() is threading.main_thread()
        )

    @contextlib.contextmanager
    def sparing(self, written: Iterable[Any]) -> Iterator[None]:
        """A context for code that writes only to these tensors."""
        for tensor in written:
            if isinstance(tensor, self._torch.Tensor) and self.beside.has_address(tensor):
                self.beside.forget(tensor)
        self._num_sparing += 1
        library.follow_thread(2)
        try:
            yield
        finally:
            self._num_sparing -= 1
            library.follow_thread(self._thread_state())

    def forget_optimizer(self, optimizer: Any) -> None:
        """Forgets the parameters and states that an optimizer will write, perhaps by kernels
        that are not followed. Its numbers, such as step counts, are followed.
        """
        groups = [*optimizer.param_groups, *optimizer.state.values()]
        for tensor in self.beside.tensors(value for owner in groups for value in owner.values()):
            if tensor.dim() and self.beside.has_address(tensor):
                number = library.number_at(tensor.data_ptr())
                if number is None or number[1] is Uniformity.TRUE:
                    library.forget(tensor.data_ptr())
        self.policy.num_evaluations = 0

    def _follow(self, op: Any, keys: Any, *args: Any, **kwargs: Any) -> Any:
        """The dispatcher's function for an operation; `keys` are those that it is dispatched by."""
        if self.is_tracing:
            return self._pass_on(op, keys, args, kwargs)
        # In backward only what counts elements, or belongs to a recomputed forward.
        if self._is_backward and not (op in self._finds or self._torch.is_grad_enabled()):
            return self._pass_on(op, keys, args, kwargs)
        run = self.unseen.run
        # A mode of the program's sees every operation, also one that only fills a weight.
        if op in self._weights.ops and not self.unseen.has_modes():
            put_off = run(op, self._weights.put_off, op, args, kwargs)
            if put_off is not None:
                return put_off
        if not self._is_following and op not in self._finds:
            return self._pass_on(op, keys, args, kwargs)
        if op is self._equal and run(op, self.beside.are_comparable, *args):
            # The single operations that a GPU runs, so that each of them is intercepted.
            return bool(args[0].eq(args[1]).all().item())
        if self._awaited in map(type, args):
            args, keys = tuple(map(self._await, args)), None  # those were of the subclass
        if op in self._copies and self._is_following:
            args = run(op, self.reads.packed, op, args, kwargs) or args
        self._include(_KEY, False)  # noqa: FBT003
        library.follow_thread(1)
        try:
            known = run(op, self._prepare, op, args, kwargs) or _LOST
            if known is _LOST:
                library.follow_thread(0)  # the operation may write to any argument
            try:
                result = self._go_on(op, keys, args, kwargs)
            finally:
                library.expect_nothing()
                library.expect_zeros()
            if known is not _LOST:
                run(op, self._conclude, op, args, kwargs, known.inputs, result)
            return result
        finally:
            library.follow_thread(self._thread_state())
            self._include(_KEY, self._is_active)

    def _prepare(self, op: Any, args: Any, kwargs: Any) -> _Prepared:
        """Called before an operation: reads its known inputs, and tells the phantom its counts."""
        beside, finds = self.beside, op in self._finds
        if not (finds or beside.may_matter(op, args)):
            beside.forget_written(op, args, kwargs)
            if self._is_following and op in self.reads.ops:
                self.reads.expect(op, args, kwargs)
            return _NOTHING
        known = beside.read_inputs(op, args) if self._is_following else None
        beside.forget_written(op, args, kwargs)
        if finds:
            is_found = self._counted.expect(
                op, args, kwargs, known, is_following=self._is_following
            )
            if is_found and self._is_following and (known is None or not known.is_complete):
                known = beside.read_inputs(op, args)  # includes the new assumptions
        if self._is_following and op in self.reads.ops:
            self.reads.expect(op, args, kwargs)
        return _Prepared(known)

    def _conclude(self, op: Any, args: Any, kwargs: Any, known: Known | None, result: Any) -> None:
        """Called after an operation: writes its result if that is known or assumed."""
        if known is not None:
            self.beside.follow(op, args, kwargs, known, result)
        is_unknown = known is None or bool(known.missing)
        if op in self._copies:
            self.beside.take_over(result)
        elif op in self._drawn and self._draws.draw(op, args, kwargs, known, result):
            pass
        elif op in self._chooses:
            is_routed = op is self._topk and is_unknown and self._routers.choose(args, result)
            if not is_routed:
                self._choices.choose(op, args, kwargs, known, result)
        elif op in self._counts and (is_unknown or op is self._histogram):
            self._routers.count(args, result)
        if known is not None:
            known.inputs.clear()  # copies, which no profile sees go

    def _expect_awaited(self, module: ModuleType) -> None:
        self._awaited = getattr(module, "AsyncCollectiveTensor", None)

    def _await(self, arg: Any) -> Any:
        """Waits for the result of an asynchronous collective, because it is used now, and returns
        the plain tensor.
        """
        is_awaited = type(arg) is self._awaited and not arg.requires_grad
        return arg.trigger_wait() if is_awaited else arg

    def _thread_state(self) -> int:
        """How the phantom treats the main thread's launches (ullage_follow_thread)."""
        if self._num_sparing:
            return 2
        return int(self._is_backward or self._is_updating or not self._is_active)

    def _pass_on(self, op: Any, keys: Any, args: Any, kwargs: Any) -> Any:
        self._include(_KEY, False)  # noqa: FBT003
        try:
            return self._go_on(op, keys, args, kwargs)
        finally:
            self._include(_KEY, self._is_active)

    def _go_on(self, op: Any, keys: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operation by the keys after ours, so that nobody sees it twice. Where a number
        stands for a tensor, torch takes it by a call alone, whose parts no profile would see.
        """
        if keys is None or self.beside.has_number_for_tensor(op, args):
            return self.unseen.call_unrecorded(op, *args, **kwargs)
        return op.redispatch(keys & self._keys_after, *args, **kwargs)


def _let_pass(ops: Any, c: Any) -> None:
    """Makes higher-order operations ignore ullage's dispatch keys: they choose kernels in Python by
    all included keys, and have no kernel for these.
    """
    compute_keyset, keys = ops._compute_keyset, [*map(c._dispatch_key_parse, _OUR_KEYS)]

    @functools.wraps(compute_keyset)
    def compute_without_ours(args: Any, kwargs: Any, candidates: Any) -> Any:
        for key in keys:
            candidates = candidates.remove(key)
        return compute_keyset(args, kwargs, candidates)

    ops._compute_keyset = compute_without_ours
