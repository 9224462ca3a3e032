"""What a batch will hold, against a simulation of it token by token."""

from __future__ import annotations

import random

import pytest
from tests.rows import each

from ullage.operate.front.policy.engine_ledger import Engine, EngineSpec
from ullage.operate.front.policy.request import PREFIX_TOKENS, Footprint, Request


def make_engine(cache_tokens: int = 1000, **fields: object) -> Engine:
    spec = EngineSpec(
        "a", ("m",), cache_tokens, Footprint(1, block_tokens=1), margin_frac=0.0, **fields
    )  # type: ignore[arg-type]
    return Engine(spec)


def make_request(number: int, prompt: int, most: int = 10_000, **fields: object) -> Request:
    return Request(number, "t", "m", prompt, most, **fields)  # type: ignore[arg-type]


def hold(rows: list[tuple[int, int, int]]) -> int:
    """The most that requests (prompt, generated, expected) hold, one token each a step."""
    most = 0
    for step in range(1 + max(expected - generated for _, generated, expected in rows)):
        # A request holds its last token until the step after.
        alive = [row for row in rows if row[2] - row[1] >= step]
        most = max(most, sum(prompt + generated + step for prompt, generated, _ in alive))
    return most


@each("seed", range(30))
def test_the_expected_peak_is_that_of_every_step(seed: int) -> None:
    generator = random.Random(seed)
    engine, rows = make_engine(10**9), []
    for number in range(generator.randrange(1, 12)):
        prompt, expected = generator.randrange(1, 500), generator.randrange(1, 300)
        generated = generator.randrange(expected)
        engine.start(make_request(number, prompt), expected, 0.0)
        engine.advance(number, generated, 1.0)
        rows.append((prompt, generated, expected))
    assert engine.peak_bytes() == hold(rows)
    candidate = make_request(99, generator.randrange(1, 500)), generator.randrange(1, 300)
    rows.append((candidate[0].prompt_tokens, 0, candidate[1]))
    assert engine.peak_bytes(candidate) == hold(rows)


def test_more_fits_than_if_all_were_longest_at_once() -> None:
    engine = make_engine(250)
    engine.start(make_request(1, 100), 50, 0.0)
    engine.advance(1, 49, 1.0)  # ends with the next token
    assert engine.fits(make_request(2, 50), 100)
    bounded = make_engine(250, is_bounded=True)
    bounded.start(make_request(1, 100), 50, 0.0)
    bounded.advance(1, 49, 1.0)
    assert not bounded.fits(make_request(2, 50), 100)


def test_what_a_request_held_is_free_again_however_it_ends() -> None:
    engine = make_engine()
    for generated in (0, 1, 7, 400):
        engine.start(make_request(1, 100, most=500), 20, 0.0)
        if generated:
            engine.advance(1, generated, 1.0)
        engine.finish(1, 2.0)
        assert engine.reserved_bytes == engine.pending_tokens == engine.bytes_now == 0
        assert engine.usable_bytes == 1000
        assert engine._tokens_now == 0


def test_an_answer_longer_than_predicted_is_predicted_anew_up_to_its_bound() -> None:
    engine = make_engine()
    engine.start(make_request(1, 100, most=100), 10, 0.0)
    engine.advance(1, 40, 1.0)
    assert engine.running[1].output_tokens == 76  # 1.5 x 40 + 16
    engine.advance(1, 90, 1.0)
    assert engine.running[1].output_tokens == 100
    assert engine.reserved_bytes == 200


def test_tokens_that_are_not_seen_count_from_the_beginning() -> None:
    engine = make_engine(400)
    engine.start(make_request(1, 100, is_streamed=False), 200, 0.0)
    assert engine.bytes_now == 300
    assert not engine.fits(make_request(2, 101), 1)
    assert engine.fits(make_request(2, 90), 9)


def test_several_sequences_grow_together() -> None:
    engine = make_engine(1000)
    engine.start(make_request(1, 100, sequences=4), 50, 0.0)
    assert engine.peak_bytes() == 100 + 4 * 50 + 3  # a block for each last one


def test_old_metrics_others_requests_and_preemptions_leave_more_free() -> None:
    engine = make_engine()
    engine.is_stale = True
    assert engine.usable_bytes == 500
    engine.is_stale = False
    engine.foreign_bytes = 300
    assert engine.usable_bytes == 700
    engine.foreign_bytes = 0
    engine.note_preemptions(2)
    careful = engine.usable_bytes
    assert careful < 1000
    for _ in range(2000):
        engine.note_preemptions(0)
    assert careful < engine.usable_bytes


def test_a_prefix_that_was_sent_there_is_not_computed_again_until_it_goes_down() -> None:
    engine = make_engine(100_000)
    prefix = (11, 12, 13)
    request = make_request(1, 4 * PREFIX_TOKENS, prefix=prefix)
    assert engine.uncached_tokens(request) == 4 * PREFIX_TOKENS
    engine.start(request, 10, 0.0)
    assert engine.uncached_tokens(request) == PREFIX_TOKENS
    assert engine.uncached_tokens(make_request(2, 900, prefix=(11, 99))) == 900 - PREFIX_TOKENS
    assert engine.uncached_tokens(make_request(2, 900, prefix=(99, 12))) == 900
    engine.go_down()
    assert engine.uncached_tokens(request) == 4 * PREFIX_TOKENS


def test_the_rate_of_prompts_is_learnt() -> None:
    engine = make_engine(10**9)
    for number in range(100):
        engine.start(make_request(number, 2000), 10, float(number))
        engine.advance(number, 1, number + 0.1)  # 20,000 tokens a second
        engine.finish(number, number + 0.2)
    assert engine.prefill_tokens_per_s == pytest.approx(20_000, rel=0.01)


def test_blocks_are_whole() -> None:
    footprint = Footprint(token_bytes=10, block_tokens=16, fixed_bytes=7)
    assert footprint.bytes_of(1) == 167
    assert footprint.bytes_of(16) == 167
    assert footprint.bytes_of(17) == 327
    assert footprint.bytes_of(17, sequences=2) == 3 * 160 + 14
