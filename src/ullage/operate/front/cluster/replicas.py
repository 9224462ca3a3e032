"""Admits requests to replicas that come and go, for a router that asks again until there is room.

    replicas = Replicas(ReplicaSpec(cache_bytes=40 * GIB, token_bytes=131072))
    replicas.update(["a", "b"])
    replicas.place("request 1", Asked(900, 256, tenant="chat"), now_s)     # "a"; None: it waits
    replicas.finish("request 1", now_s)

A router of Ray Serve sees requests and when they end, not their tokens: each is given room for all
that it may write, until it ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ullage.operate.front.policy.admission import Admission, TenantSpec
from ullage.operate.front.policy.engine_ledger import Engine, EngineSpec
from ullage.operate.front.policy.lengths import Lengths
from ullage.operate.front.policy.request import Decision, Footprint, Reject, Request, Start

_MODEL: Final = "deployment"  # all replicas of a deployment serve the same
_CHARACTERS_PER_TOKEN: Final = 3
_OTHERS: Final = "others"
_TEXTS: Final = ("prompt", "messages", "input")


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """The properties of all replicas of a deployment.

    Attributes:
        cache_bytes: of a replica's KV cache; where several routers send to it, this one's part.
        token_bytes: of a token in it.
        block_tokens: of a block.
        max_requests: that a replica runs at once.
        max_tokens: of an answer, where a request does not say.
        weights: of tenants; one that is not named here is one of the others, with a weight of 1.
    """

    cache_bytes: int
    token_bytes: int
    block_tokens: int = 16
    max_requests: int = 256
    max_tokens: int = 1024
    weights: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """The demand of a request: the tokens of its prompt, of its answer at most, and who pays."""

    prompt_tokens: int
    max_tokens: int | None = None
    tenant: str = _OTHERS


def read_asked(arguments: Iterable[Any]) -> Asked:
    """The demand in the arguments of a deployment's method: the first that has a prompt, messages
    or an input, as a mapping or as an object of OpenAI's names; its `user` is the tenant.

    Counts: a token for each three bytes of the text, as nothing else is known here.
    """
    for argument in arguments:
        given = argument if isinstance(argument, Mapping) else getattr(argument, "__dict__", {})
        texts = [given[name] for name in _TEXTS if given.get(name)]
        if texts:
            size = len(str(texts[0]).encode("utf-8", "surrogatepass"))
            most = given.get("max_completion_tokens") or given.get("max_tokens")
            bound = most if isinstance(most, int) and most > 0 else None
            return Asked(
                -(-size // _CHARACTERS_PER_TOKEN), bound, str(given.get("user") or _OTHERS)
            )
    return Asked(1)


class Replicas:
    """The replicas of a deployment as one router knows them."""

    def __init__(self, spec: ReplicaSpec) -> None:
        self._spec = spec
        weights = {_OTHERS: 1.0, **(spec.weights or {})}
        tenants = {name: TenantSpec(weight, 2**31) for name, weight in weights.items()}
        self._admission = Admission([], tenants, Lengths(None), max_queue=2**31)
        self._names = frozenset(weights)
        self._requests: dict[str, Request] = {}
        self._by_number: dict[int, str] = {}
        self._decisions: dict[str, Decision] = {}
        self._ids = itertools.count(1)

    @property
    def num_waiting(self) -> int:
        """Requests without a replica."""
        return len(self._requests) - len(self._decisions)

    def reserved_bytes(self, name: str) -> int:
        """The bytes promised in a replica."""
        return self._admission.engines[name].reserved_bytes

    def update(self, names: Iterable[str]) -> None:
        """Takes which replicas there are. What runs in one that is gone is ended by its caller."""
        present = {*names}
        engines = self._admission.engines
        for name in present - engines.keys():
            self._admission.add(Engine(self._engine_spec(name)))
        for name, engine in engines.items():
            engine.is_up = name in present

    def place(self, key: str, asked: Asked, now_s: float) -> str | Reject | None:
        """The replica of a request; None: it waits, and this is to be called again."""
        if key not in self._requests:
            request = self._make_request(asked, now_s)
            reject = self._admission.submit(request, now_s)
            if reject is not None:
                return reject
            self._requests[key], self._by_number[request.id] = request, key
        for decision in self._admission.decide(now_s):
            self._decisions[self._by_number[decision.request.id]] = decision
        chosen = self._decisions.get(key)
        if isinstance(chosen, Reject):
            self._forget(key)
            return chosen
        return None if chosen is None else chosen.engine

    def finish(self, key: str, now_s: float) -> None:
        """A request has ended, or nobody waits for it any more; others than those that came, and
        those that have ended already, are nothing.
        """
        request = self._requests.get(key)
        if request is None:
            return
        if key not in self._decisions:
            self._admission.withdraw(request, now_s)
        elif isinstance(self._decisions[key], Start):
            self._admission.finish(request.id, now_s, is_whole=False)
        self._forget(key)

    def _forget(self, key: str) -> None:
        request = self._requests.pop(key)
        self._by_number.pop(request.id)
        self._decisions.pop(key, None)

    def _make_request(self, asked: Asked, now_s: float) -> Request:
        tenant = asked.tenant if asked.tenant in self._names else _OTHERS
        most = self._spec.max_tokens if asked.max_tokens is None else asked.max_tokens
        return Request(
            next(self._ids), tenant, _MODEL, asked.prompt_tokens, most, arrival_s=now_s,
            is_streamed=False,
        )  # fmt: skip

    def _engine_spec(self, name: str) -> EngineSpec:
        spec = self._spec
        return EngineSpec(
            name, (_MODEL,), spec.cache_bytes, Footprint(spec.token_bytes, spec.block_tokens),
            max_requests=spec.max_requests, margin_frac=0.0, is_bounded=True,
            prefill_in_flight=2**31,  # first tokens are not seen here
        )  # fmt: skip
