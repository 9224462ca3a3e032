"""Requests to a model that run out of memory are answered under a leaner cache, or refused with
what they need: `ullage.guard_inference`.

    with ullage.guard_inference(model) as guard:
        output = guard.answer(model.generate, input_ids, max_new_tokens=200)

Each request begins as it is called. What a failed try holds is let go, and requests of other
threads go on. docs/guide/guard.md says what is run again and what is not.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ullage.errors import GuardError, RequestTooLarge, SpecError
from ullage.runtime.failure import Failure, release, say, take_failure
from ullage.runtime.requests.cache_need import find_cache_need
from ullage.runtime.requests.turns import Turns
from ullage.units import format_bytes

Result = TypeVar("Result")
Settings = Mapping[str, Any]
OFFLOADED: Settings = {"cache_implementation": "offloaded"}
_QUANTIZED = "quantized"
_WAIT_S = 60.0
# What a failed try has changed or printed already, and a second one would again.
_USED_UP = ("past_key_values", "cache_params", "streamer", "assistant_model")


@dataclass(frozen=True, slots=True)
class _Before:
    """Version counters before a request; generators where no other request runs."""

    versions: tuple[tuple[str, Any, int], ...]
    random: Any
    number: int


class InferenceGuard:
    """Answers requests, and those again that run out of memory; see `guard_inference`.

    Attributes:
        num_answers: requests that were answered.
        num_recoveries: those of them that ran out of memory first.
        num_refusals: requests that were refused.
    """

    def __init__(self, model: Any, rungs: Sequence[Settings], wait_s: float) -> None:
        self.num_answers = self.num_recoveries = self.num_refusals = 0
        self._model = model
        self._rungs: tuple[Settings, ...] = ({}, *rungs)
        self._lock = threading.Lock()
        self._turns = Turns(wait_s)
        self._is_open = False

    def __enter__(self) -> InferenceGuard:
        self._is_open = True
        names = [f"{number}. {_name(rung)}" for number, rung in enumerate(self._rungs)]
        say(f"{len(names)} rungs for each request: {'; '.join(names)}")
        if any(_QUANTIZED in rung.values() for rung in self._rungs):
            say("a quantized cache gives other numbers than the request without rungs")
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open = False
        say(
            f"{self.num_recoveries} recoveries and {self.num_refusals} refusals in "
            f"{self.num_answers + self.num_refusals} requests"
        )

    def answer(self, handler: Callable[..., Result], /, *request: Any, **keywords: Any) -> Result:
        """Answers a request, under a leaner cache where it runs out of memory. May be called by
        several threads at once.

        Args:
            handler: `model.generate`, or a function that takes the keywords of the rungs
                (`cache_implementation`) besides the request.
            request: what handler is called with.
            keywords: the same.

        Returns:
            what handler returns.

        Raises:
            RequestTooLarge: it has run out of memory on every rung; with the bytes that its cache
                needs and that are free.
            GuardError: a request that ran out of memory cannot be run again.
            SpecError: the handler does not take a rung's keywords.
        """
        if not self._is_open:
            raise SpecError("the guard is closed; call answer within `with guard_inference(...)`")
        self._check_handler(handler)
        try:
            with self._turns.running() as (number, is_alone):
                before = self._note(request, keywords, number, is_alone=is_alone)
                return self._run(handler, request, keywords, before)
        except (GuardError, RequestTooLarge):
            with self._lock:
                self.num_refusals += 1
            raise

    def _run(
        self, handler: Callable[..., Result], request: Any, keywords: Settings, before: _Before
    ) -> Result:
        import torch

        first: Failure | None = None
        leaner = [
            rung
            for rung in self._rungs
            if not rung or any(keywords.get(name) != value for name, value in rung.items())
        ]
        for rung in self._turns.tries(leaner):
            try:
                result = handler(*request, **{**keywords, **rung})
            except torch.OutOfMemoryError as error:
                failure = take_failure(error)
            else:
                with self._lock:
                    self.num_answers += 1
                    self.num_recoveries += first is not None
                if first is not None:
                    say(f"out of memory ({first.text}): answered the request with {_name(rung)}")
                return result
            release(torch)
            first = first or failure
            self._check(before, keywords, failure)
        raise self._too_large(request, keywords, first)

    def _note(self, request: Any, keywords: Settings, number: int, *, is_alone: bool) -> _Before:
        from ullage.runtime.batch import tensors_by_name
        from ullage.runtime.state.generators import RandomStates

        own = [*self._model.named_parameters(), *self._model.named_buffers()]
        given = tensors_by_name({**dict(enumerate(request)), **keywords})
        tensors = [*own, *((f"argument {name} of the request", each) for name, each in given)]
        versions = tuple(
            (name, each, each._version) for name, each in tensors if not each.is_inference()
        )
        random = None
        if is_alone:
            random = RandomStates([each for _, each in own])
            random.take()
        return _Before(versions, random, number)

    def _check(self, before: _Before, keywords: Settings, failure: Failure) -> None:
        """Restores the generators if no other request has run since."""
        used = [name for name in _USED_UP if keywords.get(name) is not None]
        if used:
            raise GuardError(
                f"the request has {used[0]}=, which the first try has used, and ran out of memory "
                f"({failure.text}); it is not run again"
            )
        changed = [name for name, each, version in before.versions if each._version != version]
        if changed:
            raise GuardError(
                f"{changed[0]!r} and {len(changed) - 1} more tensors were changed by the request "
                f"that ran out of memory ({failure.text}); it is not run again"
            )
        if before.random is not None and self._turns.num_started == before.number:
            before.random.rewind()

    def _too_large(
        self, request: Any, keywords: Settings, failure: Failure | None
    ) -> RequestTooLarge:
        import torch

        need = find_cache_need(self._model, request, keywords)
        free_bytes = None
        device = next((each.device for each in self._model.parameters()), torch.device("cpu"))
        if device.type == "cuda":
            free_bytes = _free_bytes(torch, device)
        sizes = [
            "how large its cache is cannot be told" if need is None else need.text,
            *([] if free_bytes is None else [f"{format_bytes(free_bytes)} is free"]),
        ]
        names = ", ".join(_name(rung) for rung in self._rungs)
        return RequestTooLarge(
            f"the request ran out of memory with {names} ("
            f"{'' if failure is None else failure.text}): {', '.join(sizes)}; ask for fewer "
            "tokens, or for fewer rows at once",
            needed_bytes=None if need is None else need.needed_bytes,
            free_bytes=free_bytes,
        )

    def _check_handler(self, handler: Any) -> None:
        """Raises SpecError for a function that does not take what the rungs give it."""
        try:
            parameters = inspect.signature(handler).parameters
        except ValueError:
            return
        if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            return
        for name in {name for rung in self._rungs for name in rung}:
            if name not in parameters:
                raise SpecError(
                    f"the handler does not take {name}=, which a rung sets; add the keyword, or "
                    "pass rungs= with keywords that it has"
                )


def guard_inference(
    model: Any, *, rungs: Sequence[Settings] = (OFFLOADED,), wait_s: float = _WAIT_S
) -> InferenceGuard:
    """A guard, whose `answer` runs a request again under a leaner cache when it runs out of memory,
    or refuses it with what it needs. It is a context manager, and changes nothing on the model.

    Args:
        model: the `nn.Module`, whose configuration says what its cache takes.
        rungs: keywords to call the handler with in the second and further tries. Of transformers,
            `{"cache_implementation": "quantized"}` may be one; it gives other numbers.
        wait_s: a request that fails on every rung while others run waits for them, in all this many
            seconds at most, and is tried again before it is refused.

    Raises:
        SpecError: a rung has no keywords.
    """
    for rung in rungs:
        if not rung:
            raise SpecError(f"rungs={list(rungs)!r} has a rung without keywords; give it one")
    return InferenceGuard(model, rungs, wait_s)


def _free_bytes(torch: Any, device: Any) -> int:
    """The bytes that the allocator can still get, of the GPU and of the program's share."""
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    read_share = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    share = 1.0 if read_share is None else read_share(device)
    own_bytes = int(share * total_bytes) - int(torch.cuda.memory_reserved(device))
    return max(0, min(int(free_bytes), own_bytes))


def _name(rung: Settings) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in rung.items()) or "the unchanged request"
