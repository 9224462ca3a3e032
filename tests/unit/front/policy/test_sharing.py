"""What engines share and what adapters take: budgets, slots, and draining."""

from __future__ import annotations

from dataclasses import replace

from ullage.operate.front.policy.admission import Admission, TenantSpec, choose_engine
from ullage.operate.front.policy.engine_ledger import Budget, Engine, EngineSpec
from ullage.operate.front.policy.lengths import Lengths
from ullage.operate.front.policy.request import Footprint, Reason, Reject, Request, Start

SPEC = EngineSpec("e", ("m",), 1000, Footprint(1, 1), margin_frac=0.0, is_bounded=True)


def request(number: int, model: str = "m", tokens: int = 100) -> Request:
    return Request(number, "a", model, tokens // 2, tokens - tokens // 2)


def test_engines_of_one_gpu_never_promise_more_than_it_has() -> None:
    budget = Budget(1000)
    first, second = (Engine(replace(SPEC, name=name), budget) for name in "ab")
    assert first.fits(request(1, tokens=700), 350)
    first.start(request(1, tokens=700), 350, 0.0)
    assert second.fits(request(2, tokens=300), 150)
    assert not second.fits(request(2, tokens=301), 151)
    first.finish(1, 1.0)
    assert second.fits(request(2, tokens=1000), 500)
    assert not second.fits_alone(request(3, tokens=1001))


def test_no_more_adapters_run_at_once_than_there_are_slots() -> None:
    engine = Engine(replace(SPEC, models=("m", "x", "y"), adapters=("x", "y"), adapter_slots=1))
    engine.start(request(1, "x"), 50, 0.0)
    assert engine.fits(request(2, "x"), 50) and engine.fits(request(3, "m"), 50)
    assert not engine.fits(request(4, "y"), 50)
    engine.start(request(2, "x"), 50, 0.0)
    engine.finish(1, 1.0)
    assert not engine.fits(request(4, "y"), 50)
    engine.finish(2, 1.0)
    assert engine.fits(request(4, "y"), 50)


def test_an_adapter_takes_its_bytes_once_while_it_runs() -> None:
    spec = replace(SPEC, models=("m", "x"), adapters=("x",), adapter_bytes=300)
    engine = Engine(spec)
    assert engine.fits(request(1, "x", 700), 350) and not engine.fits(request(1, "x", 701), 351)
    engine.start(request(1, "x", 200), 100, 0.0)
    assert engine.usable_bytes == 700
    assert engine.fits(request(2, "x", 500), 250) and engine.fits(request(2, "m", 500), 250)
    assert not engine.fits(request(2, "m", 501), 251)
    engine.finish(1, 1.0)
    assert engine.usable_bytes == 1000
    assert not engine.fits_alone(request(3, "x", 701))


def test_the_engine_that_has_the_adapter_is_chosen() -> None:
    spec = replace(SPEC, models=("m", "x"), adapters=("x",))
    first, second = Engine(replace(spec, name="a")), Engine(replace(spec, name="b"))
    second.start(request(1, "x"), 50, 0.0)
    second.advance(1, 1, 0.1)
    assert choose_engine((first, second), request(2, "x"), 50, 0.2) is second
    assert choose_engine((first, second), request(2, "m"), 50, 0.2) is first


def test_an_engine_that_drains_ends_what_it_has_and_gets_nothing() -> None:
    first, second = Engine(replace(SPEC, name="a")), Engine(replace(SPEC, name="b"))
    admission = Admission([first, second], {"a": TenantSpec()}, Lengths(None))
    first.is_draining = True
    for number in range(1, 4):
        admission.submit(request(number), 0.0)
    starts = admission.decide(0.0)
    assert {each.engine for each in starts if isinstance(each, Start)} == {"b"}
    second.is_draining = True
    reject = admission.submit(request(9), 0.0)
    assert reject is not None and reject.reason is Reason.NO_ENGINE
    assert admission.num_running == 3
    assert not admission.is_served("m")
    first.is_draining = False
    assert admission.is_served("m")


def test_what_waits_for_engines_that_are_gone_is_answered() -> None:
    engine = Engine(SPEC)
    admission = Admission([engine], {"a": TenantSpec()}, Lengths(None))
    admission.submit(request(1, tokens=1000), 0.0)
    admission.submit(request(2, tokens=1000), 0.0)
    admission.decide(0.0)
    engine.go_down()
    assert admission.decide(5.0) == []
    (reject,) = admission.decide(11.0)
    assert isinstance(reject, Reject) and reject.reason is Reason.NO_ENGINE
    assert reject.retry_after_s is not None
