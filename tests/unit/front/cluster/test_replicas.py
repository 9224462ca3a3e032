"""Replicas that come and go behind a router that asks again and again."""

from __future__ import annotations

from types import SimpleNamespace

from ullage.operate.front.cluster.replicas import Asked, Replicas, ReplicaSpec, read_asked
from ullage.operate.front.policy.request import Reason, Reject

SPEC = ReplicaSpec(cache_bytes=1000, token_bytes=1, block_tokens=1)


def make_replicas(*names: str, spec: ReplicaSpec = SPEC) -> Replicas:
    replicas = Replicas(spec)
    replicas.update(names)
    return replicas


def test_a_request_waits_until_a_replica_has_room() -> None:
    replicas = make_replicas("a", "b")
    places = {replicas.place(f"{number}", Asked(300, 300), 0.0) for number in range(2)}
    assert places == {"a", "b"}
    assert replicas.place("late", Asked(300, 300), 0.0) is None
    assert replicas.place("late", Asked(300, 300), 0.1) is None
    replicas.finish("0", 1.0)
    assert replicas.place("late", Asked(300, 300), 1.0) in ("a", "b")
    assert replicas.place("late", Asked(300, 300), 1.1) in ("a", "b")  # asked again: the same
    for key in ("1", "late", "late", "never came"):
        replicas.finish(key, 2.0)
    assert replicas.reserved_bytes("a") == replicas.reserved_bytes("b") == 0


def test_who_had_less_comes_first() -> None:
    spec = ReplicaSpec(1000, 1, 1, weights={"light": 1.0})
    replicas = make_replicas("a", spec=spec)
    assert replicas.place("1", Asked(400, 400), 0.0) == "a"
    assert replicas.place("2", Asked(400, 400), 0.1) is None
    assert replicas.place("3", Asked(400, 400, "light"), 0.2) is None
    replicas.finish("1", 1.0)
    assert replicas.place("2", Asked(400, 400), 1.0) is None
    assert replicas.place("3", Asked(400, 400, "light"), 1.0) == "a"


def test_what_never_fits_and_what_nobody_serves_is_refused() -> None:
    replicas = make_replicas("a")
    reject = replicas.place("1", Asked(900, 900), 0.0)
    assert isinstance(reject, Reject) and reject.reason is Reason.TOO_LARGE
    replicas.update([])
    reject = replicas.place("2", Asked(1, 1), 0.0)
    assert isinstance(reject, Reject) and reject.reason is Reason.NO_ENGINE


def test_a_replica_that_is_gone_gets_nothing_and_a_new_one_does() -> None:
    replicas = make_replicas("a")
    replicas.update(["b"])
    assert replicas.place("1", Asked(10, 10), 0.0) == "b"
    assert replicas.num_waiting == 0


def test_who_waits_no_more_is_forgotten() -> None:
    replicas = make_replicas("a")
    replicas.place("1", Asked(400, 400), 0.0)
    replicas.place("2", Asked(400, 400), 0.0)
    replicas.finish("2", 0.5)
    replicas.finish("1", 1.0)
    assert replicas.num_waiting == 0
    assert replicas.place("3", Asked(400, 400), 1.0) == "a"


def test_requests_are_read_as_mappings_and_as_objects() -> None:
    assert read_asked([{"prompt": "x" * 30, "max_tokens": 5, "user": "u"}]) == Asked(10, 5, "u")
    thing = SimpleNamespace(messages=[{"role": "user", "content": "x" * 60}], max_tokens=None)
    asked = read_asked([5, thing])
    assert asked.prompt_tokens > 20 and asked.max_tokens is None and asked.tenant == "others"
    assert read_asked([]) == read_asked([object(), "text"]) == Asked(1)
