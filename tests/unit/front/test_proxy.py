"""The front between real sockets: answers, limits, and everything that goes wrong."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path

import pytest
from benchmarks.front.engine_model import Speed
from tests.rows import each
from tests.unit.front.conftest import RunFront

pytest.importorskip("httptools", reason="needs the extra ullage[front]")

import httpx
from tests.unit.front.sockets import (
    FAST,
    KEYS,
    Setup,
    key,
    move,
    running_page,
    running_stub,
    serve_app,
    until,
    write_configuration,
)

from ullage.operate.front.proxy.app import keep_on, make_front
from ullage.operate.front.proxy.board import Board
from ullage.operate.front.proxy.monitor import Monitor
from ullage.operate.front.proxy.upstream import EngineLost
from ullage.operate.front.settings import load_front

SLOW = Speed(step_s=0.02, sequence_s=0, prompt_token_s=1e-6, cached_token_s=0)


def words(body: str) -> list[str]:
    """The tokens of a stream."""
    events = [line[6:] for line in body.splitlines() if line.startswith("data: {")]
    return [json.loads(event)["choices"][0]["text"] for event in events]


def test_a_stream_and_a_whole_answer_come_through(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        whole = await setup.ask({"prompt": "x" * 40, "max_tokens": 5})
        assert whole.status_code == 200
        assert whole.json()["choices"][0]["text"] == "1 2 3 4 5 "
        assert whole.headers["x-ullage-prompt-tokens"] == "11"
        stream = await setup.ask({"prompt": "x" * 40, "max_tokens": 5, "stream": True})
        assert words(stream.text) == ["1 ", "2 ", "3 ", "4 ", "5 "]
        assert stream.text.endswith("data: [DONE]\n\n")
        assert stream.headers["content-type"].startswith("text/event-stream")
        messages = [{"role": "user", "content": "x" * 40}]
        chat = {"messages": messages, "max_tokens": 3}
        answer = await setup.ask(chat, path="/v1/chat/completions")
        assert answer.json()["choices"][0]["text"] == "1 2 3 "

    run_front(scenario)


def test_a_bound_is_added_where_a_request_has_none(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        answer = await setup.ask({"prompt": "x"})
        assert answer.json()["usage"]["completion_tokens"] == 7

    run_front(scenario, more="max_tokens = 7")


def test_nothing_is_preempted_behind_it_and_much_without_it(run_front: RunFront) -> None:
    fields = {"prompt": "x" * 400, "max_tokens": 60, "stream": True}

    async def scenario(setup: Setup) -> None:
        (stub,) = setup.stubs
        answers = await asyncio.gather(*(setup.ask(fields) for _ in range(4)))
        assert [len(words(answer.text)) for answer in answers] == [60] * 4
        assert stub.engine.model.num_preemptions == 0
        direct = f"http://127.0.0.1:{stub.port}/v1/completions"
        await asyncio.gather(*(setup.client.post(direct, json=fields) for _ in range(4)))
        assert stub.engine.model.num_preemptions > 0

    run_front(scenario, blocks=24, more='reserve = "max_tokens"')


def test_clients_that_hang_up_give_their_bytes_back(run_front: RunFront) -> None:
    async def hang_up(setup: Setup) -> None:
        fields = {"model": "stub", "prompt": "x" * 400, "max_tokens": 500, "stream": True}
        stream = setup.client.stream("POST", "/v1/completions", json=fields, headers=key("chat"))
        async with stream as answer:
            async for _ in answer.aiter_raw():
                return

    async def scenario(setup: Setup) -> None:
        (stub,) = setup.stubs
        await hang_up(setup)
        await until(lambda: setup.num_running == 0 and stub.engine.num_cancelled == 1)
        await until(lambda: stub.engine.model.used_blocks == 0)
        assert (await setup.ask({"prompt": "x" * 400, "max_tokens": 5})).status_code == 200

    run_front(scenario, speed=SLOW)


def test_the_front_ends_and_says_so_in_a_stream_without_an_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It gives what runs a second here, and half a minute when it is served."""
    fields = {"model": "stub", "prompt": "x", "max_tokens": 900, "stream": True}

    async def all_of_it() -> str:
        async with running_stub(64, SLOW) as stub:
            settings = load_front(tmp_path, write_configuration(tmp_path, [stub.port], 64))
            async with make_front(settings) as app, httpx.AsyncClient(trust_env=False) as client:
                async with serve_app(app) as port:
                    url = f"http://127.0.0.1:{port}/v1/completions"
                    stream = asyncio.create_task(
                        client.post(url, json=fields, headers=key("chat"), timeout=60)
                    )
                    await until(lambda: stub.engine.last_id == 1)
                await until(lambda: app.board.admission.num_running == 0)
                return (await stream).text

    text = asyncio.run(all_of_it())
    assert '"text": "2 "' in text and '"code": 503' in text
    assert "the server ends" in text and "[DONE]" not in text
    assert "Traceback" not in capfd.readouterr().err


def test_a_client_that_hangs_up_while_it_waits_is_forgotten(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        fields = {"prompt": "x" * 400, "max_tokens": 600, "stream": True}
        first = asyncio.create_task(setup.ask(fields))
        await until(lambda: setup.num_running == 1)
        second = asyncio.create_task(setup.ask(fields))
        waiting = setup.app.board.admission
        await until(lambda: waiting.num_waiting["chat"] == 1)
        second.cancel()
        await until(lambda: waiting.num_waiting["chat"] == 0)
        assert setup.num_running == 1
        first.cancel()

    run_front(scenario, speed=SLOW)


def test_an_engine_that_dies_is_replaced_and_used_again_when_it_is_back(
    run_front: RunFront,
) -> None:
    async def scenario(setup: Setup) -> None:
        engines = setup.app.board.admission.engines
        fields = {"prompt": "x" * 40, "max_tokens": 3, "stream": True}
        dead = f"e{setup.stubs[0].port}"
        # Nobody listens there now, as after a crash.
        settings = setup.app.settings.engines[dead]
        upstream = setup.app.relay.upstreams[dead]
        port = move(upstream, 1)
        answers = await asyncio.gather(*(setup.ask(fields) for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200}
        assert all(len(words(answer.text)) == 3 for answer in answers)
        assert not engines[dead].is_up and settings.has_metrics
        move(upstream, port)
        await until(lambda: engines[dead].is_up)

    run_front(scenario, engines=2)


def test_without_any_engine_there_is_an_answer_with_retry_after(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        move(setup.app.relay.upstreams[f"e{setup.stubs[0].port}"], 1)
        for _ in range(2):
            answer = await setup.ask({"prompt": "x", "max_tokens": 3})
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
        assert (await setup.client.get("/health")).status_code == 503

    run_front(scenario)


def test_a_stream_that_breaks_off_says_so(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        (stub,) = setup.stubs
        fields = {"prompt": "x" * 40, "max_tokens": 500, "stream": True}
        task = asyncio.create_task(setup.ask(fields))
        await until(lambda: bool(stub.engine.queues))
        running = setup.app.board.admission.engines[f"e{stub.port}"].running
        await until(lambda: any(each.generated > 2 for each in running.values()))
        stub.engine.is_failing = True
        text = (await task).text
        assert '"code": 502' in text and "[DONE]" not in text

    run_front(scenario, speed=SLOW)


def test_a_full_queue_is_429_and_a_passed_deadline_is_503(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        fields = {"prompt": "x" * 400, "max_tokens": 800, "stream": True}
        first = asyncio.create_task(setup.ask(fields, "hog"))
        await until(lambda: setup.num_running == 1)
        waits = asyncio.create_task(setup.ask(fields))
        await until(lambda: setup.app.board.admission.num_waiting["chat"] == 1)
        answer = await setup.ask(fields)
        assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
        late = await waits
        assert late.status_code == 503 and "deadline" in late.json()["error"]["message"]
        assert int(late.headers["retry-after"]) >= 1
        first.cancel()

    more = "[front.tenant.chat]\nmax_queue = 1\ndeadline_s = 0.5\n"
    run_front_with_tenant(run_front, scenario, more)


def run_front_with_tenant(run_front: RunFront, scenario: object, table: str) -> None:
    """With other values in the table of the tenant chat."""
    import tests.unit.front.sockets as setup

    original = setup.write_configuration

    def write(folder: Path, ports: list[int], blocks: int, *more: str) -> Path:
        path = original(folder, ports, blocks, *more)
        text = path.read_text().replace("[front.tenant.chat]\n", table)
        path.write_text(text)
        return path

    setup.write_configuration = write  # type: ignore[assignment]
    try:
        run_front(scenario, speed=SLOW)
    finally:
        setup.write_configuration = original


def test_what_never_fits_is_refused_or_trimmed_where_that_is_allowed(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        turns = [{"role": "user", "content": "y" * 400} for _ in range(20)]
        system = {"role": "system", "content": "rule"}
        fields = {"messages": [system, *turns], "max_tokens": 10}
        refused = await setup.ask(fields, "hog", "/v1/chat/completions")
        assert refused.status_code == 400 and "cache" in refused.json()["error"]["message"]
        assert "retry-after" not in refused.headers
        trimmed = await setup.ask(fields, "chat", "/v1/chat/completions")
        assert trimmed.status_code == 200
        assert 0 < int(trimmed.headers["x-ullage-trimmed-messages"]) < 20
        huge = {"messages": [system, {"role": "user", "content": "y" * 9000}], "max_tokens": 10}
        answer = await setup.ask(huge, "chat", "/v1/chat/completions")
        assert answer.status_code == 400

    run_front_with_tenant(run_front, scenario, '[front.tenant.chat]\ntrim = "oldest-messages"\n')


def test_a_slow_reader_is_cut_off_and_gives_its_bytes_back(
    run_front: RunFront, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario(setup: Setup) -> None:
        body = json.dumps(
            {"model": "stub", "prompt": "x" * 40, "max_tokens": 1000, "stream": True}
        ).encode()
        setup.stubs[0].engine.padding = "x" * 2**16
        reader, writer = await asyncio.open_connection("127.0.0.1", setup.port, limit=1)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
            b"authorization: Bearer " + KEYS["chat"].encode() + b"\r\n"
            b"content-length: %d\r\n\r\n" % len(body) + body
        )
        await until(lambda: setup.num_running == 1)
        outcomes = setup.app.board.outcomes
        await until(lambda: outcomes["chat", "slow reader"] == 1)  # the sockets' buffers are full
        await until(lambda: setup.num_running == 0)
        del reader
        writer.close()

    run_front(scenario, more="slow_reader_s = 0.2", blocks=128)
    assert capsys.readouterr().err == ""


def test_many_requests_leave_nothing_behind(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        fields = {"prompt": "x" * 40, "max_tokens": 2, "stream": True}

        async def ask_many(count: int) -> None:
            for _ in range(count):
                assert (await setup.ask(fields)).status_code == 200

        await asyncio.gather(*(ask_many(3) for _ in range(10)))
        gc.collect()
        before = len(gc.get_objects())
        await asyncio.gather(*(ask_many(12) for _ in range(10)))
        gc.collect()
        # Histories and counters are bounded; a request that stayed would be many times as much.
        assert len(gc.get_objects()) - before < 120
        assert setup.app.board._futures == {}

    run_front(scenario)


def test_metrics_and_the_admins_page_answer_this_machine_alone(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        await setup.ask({"prompt": "secret words", "max_tokens": 3})
        await setup.client.post("/v1/completions", content=b"{secret", headers={
            **key("chat"), "content-type": "application/json"})  # fmt: skip
        metrics = await setup.client.get("/metrics")
        assert 'ullage_front_requests_total{outcome="answered",tenant="chat"} 1.0' in metrics.text
        assert 'outcome="refused 400",tenant="chat"} 1.0' in metrics.text
        page = await setup.client.get("/admin")
        assert page.status_code == 200 and "chat" in page.text
        assert "secret" not in page.text + metrics.text
        for path in ("/metrics", "/admin"):
            rebound = await setup.client.get(path, headers={"host": "evil.example"})
            assert rebound.status_code == 403

    run_front(scenario)


def test_preemptions_and_old_metrics_make_it_careful(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        name = f"e{setup.stubs[0].port}"
        engine, stub = setup.app.board.admission.engines[name], setup.stubs[0].engine
        upstream = setup.app.relay.upstreams[name]
        board = Board(setup.app.board.admission, clock=lambda: now_s)
        now_s = 0.0
        monitor = Monitor(board, upstream)
        await monitor.look()
        usable_bytes = engine.usable_bytes
        stub.model.num_preemptions += 3
        await monitor.look()
        assert engine.usable_bytes < usable_bytes
        stub.is_silent, now_s = True, 5.0
        await monitor.look()
        assert engine.is_stale and engine.is_up
        assert engine.usable_bytes <= engine.spec.cache_bytes // 2
        stub.is_silent = False
        await monitor.look()
        assert not engine.is_stale

    run_front(scenario)


@each("odd", ["1e999", "-1e999", "1.2.3", f"0.5 {'x' * 2**22}"], name=lambda odd: odd[:9])
def test_metrics_that_cannot_be_read_are_old_and_the_engine_stays(
    run_front: RunFront, caplog: pytest.LogCaptureFixture, odd: str
) -> None:
    async def scenario(setup: Setup) -> None:
        (stub,), times = setup.stubs, [0.0]
        name = f"e{stub.port}"
        engine, upstream = setup.app.board.admission.engines[name], setup.app.relay.upstreams[name]
        monitor = Monitor(Board(setup.app.board.admission, clock=lambda: times[-1]), upstream)
        async with running_page(f"vllm:kv_cache_usage_perc {odd}\n".encode()) as port:
            move(upstream, port)
            for now_s in (0.0, 2.0, 5.0, 60.0):
                times.append(now_s)
                await monitor.look()
            assert engine.is_stale and engine.is_up
        move(upstream, stub.port)
        await monitor.look()
        assert not engine.is_stale

    run_front(scenario)
    said = [record.message for record in caplog.records if record.name == "ullage.front"]
    assert sum(one.startswith("engine e") for one in said) >= 1


@each("head", [b"200 OK\r\ncontent-type: text/\xff", b"999 Odd", b"101 Switching Protocols"])
def test_an_odd_head_of_an_engine_is_a_clean_502(run_front: RunFront, head: bytes) -> None:
    async def scenario(setup: Setup) -> None:
        (stub,) = setup.stubs
        upstream = setup.app.relay.upstreams[f"e{stub.port}"]
        async with running_page(b"{}", head) as port:
            move(upstream, port)
            answer = await setup.ask({"prompt": "x", "max_tokens": 3})
            assert answer.status_code == 502, answer.text
            monitor = Monitor(setup.app.board, upstream)
            await monitor.look()
        move(upstream, stub.port)
        await monitor.look()
        assert (await setup.ask({"prompt": "x", "max_tokens": 3})).status_code == 200

    run_front(scenario)


def test_a_moment_to_try_again_that_is_no_number_is_left_out(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        upstream = setup.app.relay.upstreams[f"e{setup.stubs[0].port}"]
        head = "429 Too Many Requests\r\nretry-after: \u00b2".encode()
        async with running_page(b"{}", head) as port:
            move(upstream, port)
            answer = await setup.ask({"prompt": "x", "max_tokens": 3})
            assert answer.status_code == 429 and "retry-after" not in answer.headers

    run_front(scenario)


def test_what_the_front_does_beside_goes_on_after_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = []

    async def look() -> None:
        calls.append(1)
        raise OSError("odd")

    async def scenario() -> None:
        task = asyncio.create_task(keep_on(look, 0.0))
        await until(lambda: len(calls) > 2)
        task.cancel()

    asyncio.run(scenario())
    assert "failed; it goes on" in caplog.text and "OSError: odd" in caplog.text


def test_what_others_hold_in_an_engine_is_not_given_out(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        (stub,) = setup.stubs
        engine = setup.app.board.admission.engines[f"e{stub.port}"]
        usable_bytes = engine.usable_bytes
        monitor = Monitor(setup.app.board, setup.app.relay.upstreams[f"e{stub.port}"])
        stub.engine.model.used_blocks += 30
        await monitor.look()
        assert engine.usable_bytes == usable_bytes - 30 * 16 * 1024
        stub.engine.model.used_blocks -= 30

    run_front(scenario)


def test_an_engine_can_die_and_come_back_at_its_port(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        engine = setup.app.board.admission.engines[f"e{setup.stubs[0].port}"]
        async with running_stub(64, FAST) as other:
            upstream = setup.app.relay.upstreams[f"e{setup.stubs[0].port}"]
            move(upstream, other.port)
            assert (await setup.ask({"prompt": "x", "max_tokens": 3})).status_code == 200
        await until(lambda: not engine.is_up)
        async with running_stub(64, FAST, other.port):
            await until(lambda: engine.is_up)
            assert (await setup.ask({"prompt": "x", "max_tokens": 3})).status_code == 200

    run_front(scenario)


def test_an_engine_that_breaks_off_and_then_is_gone_is_replaced(
    run_front: RunFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(setup: Setup) -> None:
        killed, sound = (f"e{stub.port}" for stub in setup.stubs)
        engines = setup.app.board.admission.engines
        errors = [EngineLost("broke off"), EngineLost("nobody listens", is_unreachable=True)]

        async def send(*_: object) -> None:
            # The sound one takes nothing new until the other is found gone.
            engines[sound].is_draining = len(errors) > 1
            raise errors.pop(0)

        monkeypatch.setattr(setup.app.relay.upstreams[killed], "send", send)
        engines[sound].is_draining = True
        assert (await setup.ask({"prompt": "x", "max_tokens": 3})).status_code == 200
        assert not errors and not engines[killed].is_up

    run_front(scenario, engines=2, each_engine="metrics = false\n")


def test_a_connection_to_an_engine_serves_one_request_after_another(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        upstream = setup.app.relay.upstreams[f"e{setup.stubs[0].port}"]
        await setup.ask({"prompt": "x", "max_tokens": 1})
        await until(lambda: len(upstream._idle) > 0)
        before = {*upstream._idle}
        for is_streamed in (True, False):
            await setup.ask({"prompt": "x", "max_tokens": 2, "stream": is_streamed})
            await until(lambda: {*upstream._idle} == before)
        # One that is left before its end is closed, as is one whose engine is out of step.
        answer = await upstream.send("/v1/completions", b'{"prompt": "x", "max_tokens": 900}')
        answer.close()
        assert answer not in upstream._idle
        setup.stubs[0].engine.is_silent = True
        with pytest.raises(EngineLost, match="silent"):
            await upstream.send("/metrics", silent_s=0.1)
        async with running_page(
            b"{}HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", length=2
        ) as port:
            move(upstream, port)
            answer = await upstream.send("/metrics")
            assert await answer.read() == b"{}"
            answer.close()
            await until(lambda: not upstream._idle)

    run_front(scenario, more="", each_engine="metrics = false\n")
