"""Who starts, when and where: nothing too early, nobody forgotten, fair shares."""

from __future__ import annotations

import random

import pytest
from tests.rows import each

from ullage.operate.front.policy.admission import PATIENCE_S, Admission, Shares, TenantSpec
from ullage.operate.front.policy.engine_ledger import Engine, EngineSpec
from ullage.operate.front.policy.lengths import Lengths
from ullage.operate.front.policy.request import Footprint, Reason, Reject, Request, Start
from ullage.operate.front.policy.room import RECENT_S, Room


def make_admission(
    *cache_tokens: int, tenants: dict[str, TenantSpec] | None = None, **fields: object
) -> Admission:
    specs = [
        EngineSpec(f"e{number}", ("m",), tokens, Footprint(1, 1), margin_frac=0.0, is_bounded=True)
        for number, tokens in enumerate(cache_tokens)
    ]
    names = tenants or {"a": TenantSpec(), "b": TenantSpec()}
    return Admission([Engine(each) for each in specs], names, Lengths(None), **fields)  # type: ignore[arg-type]


def request(
    number: int, tenant: str = "a", prompt: int = 50, most: int = 50, **fields: object
) -> Request:
    return Request(number, tenant, "m", prompt, most, **fields)  # type: ignore[arg-type]


def started(admission: Admission, now_s: float) -> list[int]:
    return [one.request.id for one in admission.decide(now_s) if isinstance(one, Start)]


@each("seed", range(20))
def test_reservations_never_exceed_a_cache_and_nobody_is_lost(seed: int) -> None:
    """An engine that gives each request all it may take never has to preempt."""
    generator = random.Random(seed)
    admission = make_admission(1000, 600)
    running: dict[int, int] = {}
    submitted, ended, rejected = 0, 0, 0
    for step in range(600):
        now_s = step / 10
        if step < 400 and generator.random() < 0.5:
            submitted += 1
            tenant = generator.choice("ab")
            deadline_s = generator.choice([None, now_s + 5.0])
            asked = request(
                submitted, tenant, generator.randrange(1, 400), generator.randrange(1, 300),
                arrival_s=now_s, deadline_s=deadline_s,
            )  # fmt: skip
            rejected += admission.submit(asked, now_s) is not None
        for number in [*running]:
            running[number] += generator.randrange(1, 60)
            place = admission._places[number].engine.running[number]
            most = place.request.max_tokens
            admission.advance(number, min(running[number], most), now_s)
            if running[number] >= most or generator.random() < 0.05:
                admission.finish(number, now_s)
                del running[number]
                ended += 1
        for decision in admission.decide(now_s):
            if isinstance(decision, Start):
                running[decision.request.id] = 0
            else:
                rejected += 1
        for engine in admission.engines.values():
            assert engine.bytes_now <= engine.peak_bytes() <= engine.spec.cache_bytes
    assert not running and sum(admission.num_waiting.values()) == 0
    assert submitted == ended + rejected > 100


def test_what_never_fits_is_rejected_for_good() -> None:
    reject = make_admission(100).submit(request(1, prompt=80, most=30), 0.0)
    assert reject == Reject(request(1, prompt=80, most=30), Reason.TOO_LARGE, None)


def test_queues_have_ends() -> None:
    admission = make_admission(100, tenants={"a": TenantSpec(max_queue=1), "b": TenantSpec()},
                               max_queue=2)  # fmt: skip
    assert admission.submit(request(1), 0.0) is None
    reject = admission.submit(request(2), 0.0)
    assert reject is not None and reject.reason is Reason.TENANT_QUEUE
    assert reject.retry_after_s is not None and reject.retry_after_s >= 1
    assert admission.submit(request(3, "b"), 0.0) is None
    reject = admission.submit(request(4, "b"), 0.0)
    assert reject is not None and reject.reason is Reason.QUEUE


def test_without_an_engine_that_answers_it_says_so() -> None:
    admission = make_admission(100)
    admission.engines["e0"].go_down()
    reject = admission.submit(request(1), 0.0)
    assert reject is not None and reject.reason is Reason.NO_ENGINE
    other = Request(1, "a", "another", 1, 1)
    reject = admission.submit(other, 0.0)
    assert reject is not None and reject.reason is Reason.NO_ENGINE


def test_a_deadline_that_cannot_be_met_is_told_before_it_passes() -> None:
    admission = make_admission(100)
    admission.submit(request(1), 0.0)
    assert started(admission, 0.0) == [1]
    admission.submit(request(2, deadline_s=1.0), 0.0)
    assert admission.decide(0.9) == []
    (reject,) = admission.decide(0.995)  # 50 tokens take 12.5 ms at 4,000 a second
    assert isinstance(reject, Reject) and reject.reason is Reason.DEADLINE


def test_a_large_request_is_passed_for_a_while_and_then_no_more() -> None:
    # The share of b is so large that it has to leave no room for a.
    admission = make_admission(100, tenants={"a": TenantSpec(), "b": TenantSpec(weight=9.0)})
    admission.submit(request(1, "b", 30, 20), 0.0)
    assert started(admission, 0.0) == [1]
    admission.submit(request(2, "a", 60, 20, arrival_s=0.0), 0.0)
    admission.submit(request(3, "b", 10, 10), 0.0)
    assert started(admission, 0.1) == [3]  # beside the first; the large one does not fit
    admission.submit(request(4, "b", 10, 10), PATIENCE_S)
    assert started(admission, PATIENCE_S + 0.2) == []
    admission.finish(1, 2.0)
    assert started(admission, 2.0) == [2]


def test_byte_seconds_are_shared_by_weight() -> None:
    """Two tenants always have requests waiting; one sends large ones, one small ones."""
    tenants = {"a": TenantSpec(weight=1.0), "b": TenantSpec(weight=3.0)}
    admission = make_admission(1000, tenants=tenants)
    used = {"a": 0.0, "b": 0.0}
    number, ends = 0, {}
    for step in range(1500):
        now_s = step / 10
        for tenant, prompt in (("a", 200), ("b", 20)):
            while admission.num_waiting[tenant] < 60:
                number += 1
                admission.submit(request(number, tenant, prompt, 20, arrival_s=now_s), now_s)
        for done in [number for number, end_s in ends.items() if end_s <= now_s]:
            del ends[done]
            admission.advance(done, 20, now_s)
            admission.finish(done, now_s)
        for begun in started(admission, now_s):
            ends[begun] = now_s + 1.0
            running = admission.engines["e0"].running[begun]
            used[running.request.tenant] += running.request.prompt_tokens + 10
    assert used["b"] / used["a"] == pytest.approx(3.0, rel=0.2)  # requests are not divisible


def test_who_has_more_than_a_share_leaves_room_for_those_who_came_lately() -> None:
    admission = make_admission(1000, spare_requests=2)
    admission.submit(request(1, "a", 20, 20), 0.0)
    assert started(admission, 0.0) == [1]
    admission.finish(1, 1.0)
    for number in range(2, 12):
        admission.submit(request(number, "b", 90, 60, is_streamed=False), 2.0)
    # Six would fit; the sixth would leave 100, which holds two of the other's, of 40 each.
    assert len(started(admission, 2.0)) == 6
    admission.submit(request(20, "a", 20, 20), 3.0)
    admission.submit(request(21, "a", 20, 20), 3.0)
    assert started(admission, 3.0) == [20, 21]


def test_room_is_left_within_the_others_share_and_while_he_is_there() -> None:
    room = Room({"a": 1.0, "b": 1.0}, spare_requests=2)
    room.come("a", 300, 0.0)
    assert room.left_for_others("b", 900, 1000, 1.0) == (0, 0)  # who holds nothing may start
    room.take("b", 400)
    assert room.left_for_others("b", 100, 1000, 1.0) == (0, 0)  # within the share of b
    assert room.left_for_others("b", 101, 1000, 1.0) == (500, 300)  # two of a's, up to its share
    room.take("a", 300)
    assert room.left_for_others("b", 101, 1000, 1.0) == (200, 200)
    assert room.left_for_others("b", 101, 1000, RECENT_S) == (0, 0)  # a is not there any more


def test_as_much_room_is_left_as_the_other_wants_at_once_within_its_share() -> None:
    room = Room({"light": 1.0, "hog": 1.0})
    room.take("hog", 600)
    for number in range(400):  # every second one of 100 that takes 2.5 s: two or three at once
        room.come("light", 100, number / 1.0)
        if number > 2:
            room.go("light", 100, number + 0.5 - 1e-9)
    total, piece = room.left_for_others("hog", 100, 1000, 400.0)
    assert piece == 100
    assert 440 <= total <= 460  # 300 or 400 at once, 350 on average, and two deviations of 50
    for _ in range(50):
        room.come("light", 100, 400.0)
    total, _ = room.left_for_others("hog", 100, 1000, 460.0)
    assert total == 500  # its share is all that is ever left


def test_what_a_heavy_tenant_wants_above_its_share_leaves_no_more_room_idle() -> None:
    room = Room({"light": 1.0, "heavy": 1.0, "hog": 1.0})
    room.take("hog", 600)
    room.take("heavy", 400)
    for number in range(100):  # one of 20 all the time, and beside it 1000 or 9000
        room.come("light", 20, 4.0 * number)
        room.come("heavy", 1000, 4.0 * number)
        room.come("heavy", 8000, 4.0 * number + 2.0)
        room.go("heavy", 8000, 4.0 * number + 4.0)
        room.go("light", 20, 4.0 * number + 4.0)
        room.go("heavy", 1000, 4.0 * number + 4.0)
    total, _ = room.left_for_others("hog", 100, 1200, 400.0)
    assert 20 <= total <= 25  # the heavy one has its share, 400


def test_long_prompts_above_a_share_are_computed_one_after_another() -> None:
    admission = make_admission(1000, spare_requests=1)
    admission.submit(request(1, "a", 10, 10), 0.0)
    assert started(admission, 0.0) == [1]
    for number in range(2, 9):
        admission.submit(request(number, "b", 100, 20), 0.0)
    # Four of 120 are within the share of b; the fifth is above it, and the sixth waits for it.
    assert started(admission, 0.0) == [2, 3, 4, 5, 6]
    assert admission.advance(6, 1, 0.3)
    # Another's request runs: it has the engine for as long as the prompt took.
    assert started(admission, 0.4) == []
    assert started(admission, 0.6) == [7]
    admission.finish(1, 0.7)
    assert admission.advance(7, 1, 0.9)
    assert not admission.advance(7, 2, 0.9)
    assert started(admission, 0.9) == [8]  # nobody else runs there


def test_a_prompt_that_is_given_up_keeps_no_other_waiting() -> None:
    admission = make_admission(1000, spare_requests=1)
    admission.submit(request(1, "a", 10, 10), 0.0)
    assert started(admission, 0.0) == [1]
    for number in range(2, 8):
        admission.submit(request(number, "b", 100, 20), 0.0)
    assert started(admission, 0.0) == [2, 3, 4, 5, 6]
    admission.finish(6, 0.1, is_whole=False)
    assert started(admission, 0.1) == [7]


def test_one_engine_keeps_the_room_so_that_the_other_can_be_full() -> None:
    admission = make_admission(1000, 1000)
    admission.submit(request(1, "a", 50, 50), 0.0)
    assert started(admission, 0.0) == [1]
    admission.finish(1, 1.0)
    for number in range(2, 12):
        admission.submit(request(number, "b", 150, 150, is_streamed=False), 2.0)
    assert len(started(admission, 2.0)) == 6  # three in each, and 100 are left in both
    for number in range(2, 6):
        admission.finish(number, 3.0)
    for number in range(20, 30):
        admission.submit(request(number, "b", 100, 100, is_streamed=False), 3.0)
    started(admission, 3.0)
    free = [each.usable_bytes - each.reserved_bytes for each in admission.engines.values()]
    assert max(free) >= 100
    admission.submit(request(40, "a", 50, 50), 4.0)
    assert started(admission, 4.0) == [40]


def test_who_was_away_has_saved_nothing_up() -> None:
    shares = Shares({"a": 1.0, "b": 1.0})
    shares.enter("a")
    shares.charge("a", 900.0)
    shares.settle("a", 100.0, 900.0)
    shares.charge("a", 500.0)
    shares.enter("b")
    assert shares.counters["b"] == 100.0  # what a is only expected to use does not count yet
    shares.charge("b", 1.0)
    assert shares.order("ab") == ["b", "a"]
    shares.settle("a", 0.0, 500.0)
    assert shares.order("ab") == ["a", "b"]


def test_the_engine_with_the_prefix_is_chosen_until_it_is_busy() -> None:
    admission = make_admission(50_000, 50_000)
    prefix = tuple(range(8))
    first = request(1, prompt=2100, prefix=prefix)
    admission.submit(first, 0.0)
    (start,) = admission.decide(0.0)
    assert isinstance(start, Start)
    admission.advance(1, 1, 0.1)
    admission.submit(request(2, prompt=2100, prefix=prefix), 0.2)
    (again,) = admission.decide(0.2)
    assert isinstance(again, Start) and again.engine == start.engine
    admission.advance(2, 1, 0.3)
    admission.submit(request(3, prompt=8000), 0.4)
    (other,) = admission.decide(0.4)
    assert isinstance(other, Start) and other.engine != start.engine


def test_predictions_are_a_quantile_of_the_tenants_own_answers() -> None:
    lengths = Lengths(0.9)
    assert lengths.predict("a", 500) == 500
    for tokens in range(1, 101):
        lengths.observe("a", tokens)
    assert lengths.predict("a", 500) == 91
    assert lengths.predict("a", 40) == 40
    assert lengths.predict("b", 500) == 500
    for _ in range(300):
        lengths.observe("a", 7)
    assert lengths.predict("a", 500) == 7
