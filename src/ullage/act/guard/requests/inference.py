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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from ullage.act.guard.failure import Failure, release, say, take_failure
from ullage.facts.families.architecture import read_model
from ullage.facts.families.config import Config
from ullage.facts.families.kv_cache import request_bytes
from ullage.ground.errors import GuardError, RequestTooLarge, SpecError
from ullage.ground.units import format_bytes

# Requests that run at once: one that fails beside others is tried again when they make room.

Try = TypeVar("Try")


@dataclass(frozen=True, slots=True)
class _Start:
    """The state when a try began, and whether no other request ran then."""

    num_ended: int
    num_resumed: int
    is_alone: bool


class Turns:
    """Counts the requests that run, and lets one wait until another ends.

    Args:
        wait_s: a request waits this many seconds at most, in all.

    Attributes:
        num_started: requests until now.
    """

    def __init__(self, wait_s: float) -> None:
        self.num_started = 0
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._num_running = self._num_waiting = self._num_ended = self._num_resumed = 0

    @contextmanager
    def running(self) -> Iterator[tuple[int, bool]]:
        """Runs a request: its number, and whether no other runs."""
        with self._changed:
            self.num_started += 1
            self._num_running += 1
            self._num_resumed += 1
            number, is_alone = self.num_started, self._num_running == 1
        try:
            yield number, is_alone
        finally:
            with self._changed:
                self._num_running -= 1
                self._num_ended += 1
                self._changed.notify_all()

    def tries(self, rungs: Sequence[Try]) -> Iterator[Try]:
        """Yields what to try, one after another, and the last of them again: when another request
        has ended or waits, until a try has failed that ran beside no other.
        """
        deadline = time.monotonic() + self._wait_s
        for rung in rungs:
            start = self._start()
            yield rung
        while self._wait(start, deadline):
            start = self._start()
            yield rungs[-1]

    def _start(self) -> _Start:
        with self._changed:
            return _Start(self._num_ended, self._num_resumed, self._is_alone())

    def _is_alone(self) -> bool:
        """True if all other requests wait: what they held in their failed tries is let go."""
        return self._num_running - self._num_waiting == 1

    def _wait(self, start: _Start, deadline: float) -> bool:
        """Waits until more requests have ended than at the start of a failed try; False if there is
        nothing to wait for, or for too long.
        """
        with self._changed:
            if self._num_ended != start.num_ended:
                return True
            if self._is_alone():
                # One that waits now may have run, and held memory, during the try.
                return not start.is_alone or self._num_resumed != start.num_resumed
            self._num_waiting += 1
            try:
                return self._changed.wait_for(
                    lambda: self._num_ended != start.num_ended,
                    max(0.0, deadline - time.monotonic()),
                )
            finally:
                self._num_waiting -= 1
                self._num_resumed += 1


# How much memory the keys and values of a request take, for a refusal that says what it needs.

_STORED_BYTES = 2  # of an element, in "bf16"


@dataclass(frozen=True, slots=True)
class CacheNeed:
    """The cache of a request.

    Attributes:
        rows: sequences that are decoded at once, beams and returned sequences counted.
        prompt_tokens: tokens of the prompt, padding included.
        new_tokens: the most that may be generated.
        needed_bytes: of keys and values when all of them are there.
    """

    rows: int
    prompt_tokens: int
    new_tokens: int
    needed_bytes: int

    @property
    def text(self) -> str:
        """The need, as a sentence's end."""
        return (
            f"the cache of {self.rows} x ({self.prompt_tokens:,} + {self.new_tokens:,}) tokens "
            f"takes {format_bytes(self.needed_bytes)}"
        )


def find_cache_need(
    model: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> CacheNeed | None:
    """The cache of a request as `generate` gets it; None if it cannot be told.

    Counts: what the model's configuration says that each layer keeps of a token, in the dtype of
    the model, for the prompt and `max_new_tokens`, of each row, beam and returned sequence.
    Ignores: copies while a cache grows, and all that is not a cache.
    Source: ullage.facts.families.kv_cache; compared with a cache in tests/phantom.
    """
    shape = next((tensor.shape for tensor in _prompts(arguments, keywords)), None)
    new_tokens = None if shape is None else _new_tokens(model, keywords, shape[1])
    config: Any = getattr(model, "config", None)
    if shape is None or new_tokens is None or not hasattr(config, "to_dict"):
        return None
    each = _setting(model, keywords, "num_beams") or 1
    rows = shape[0] * max(each, _setting(model, keywords, "num_return_sequences") or 1)
    context = shape[1] + new_tokens
    try:
        layers = read_model(Config(type(model).__name__, config.to_dict())).layers
        row_bytes = sum(request_bytes(layer, context) for layer in layers)
    except SpecError:
        return None
    itemsize = next((each.element_size() for each in model.parameters()), _STORED_BYTES)
    needed_bytes = rows * row_bytes * itemsize // _STORED_BYTES
    return CacheNeed(rows, shape[1], new_tokens, needed_bytes)


def _prompts(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Iterator[Any]:
    """Tensors that may be a prompt: (rows, tokens), of whole numbers."""
    by_name = [keywords.get("input_ids"), keywords.get("inputs")]
    for value in [*by_name, *arguments]:
        candidate: Any = value.get("input_ids") if isinstance(value, Mapping) else value
        is_tensor = hasattr(candidate, "is_floating_point") and candidate.dim() == 2
        if is_tensor and not candidate.is_floating_point():
            yield candidate


def _new_tokens(model: Any, keywords: Mapping[str, Any], prompt: int) -> int | None:
    new_tokens = _setting(model, keywords, "max_new_tokens")
    if new_tokens is not None:
        return new_tokens
    length = _setting(model, keywords, "max_length")
    return None if length is None else max(0, length - prompt)


def _setting(model: Any, keywords: Mapping[str, Any], name: str) -> int | None:
    """A number of a request, else of the configuration that goes with it or with the model."""
    configurations = (keywords.get("generation_config"), getattr(model, "generation_config", None))
    values = [keywords.get(name), *(getattr(each, name, None) for each in configurations)]
    return next((value for value in values if isinstance(value, int)), None)


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
        from ullage.act.guard.batch import tensors_by_name
        from ullage.act.guard.state.generators import RandomStates

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
