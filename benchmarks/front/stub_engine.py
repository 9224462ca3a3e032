"""A server that pretends: it speaks OpenAI's API and vLLM's metrics, and computes nothing.

    python -m benchmarks.front.stub_engine --port 8001 --blocks 2560

Behind it is the model of engine_model.py in real time, with its cache, preemptions and step times.
A prompt has a token for each four characters; the answer has `min_tokens` tokens, by default
`max_tokens`. All of it is made up, but for the sockets.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from benchmarks.front.engine_model import EngineModel, Speed
from benchmarks.front.traffic import Arrival

CHARACTERS_PER_TOKEN = 4
MODEL = "stub"


@dataclass
class StubEngine:
    """The model in real time, and the answers that wait for its tokens."""

    model: EngineModel
    queues: dict[int, asyncio.Queue[int]] = field(default_factory=dict)
    has_come: asyncio.Event = field(default_factory=asyncio.Event)
    last_id: int = 0
    num_cancelled: int = 0
    encoded: dict[str, object] = field(default_factory=dict)  # the latest such request
    latest: dict[str, object] = field(default_factory=dict)  # the latest request for a completion
    completed: Counter[str] = field(default_factory=Counter)  # requests by model
    max_used_blocks: int = 0
    is_failing: bool = False  # breaks off all answers
    is_silent: bool = False  # leaves requests for metrics without an answer
    padding: str = ""  # of each token; or the field `user` of a request

    async def run(self) -> None:
        """Steps, until it is cancelled."""
        while True:
            now_s = time.monotonic()
            self.model.begin(now_s, now_s)
            if self.model.end_s is None:
                self.has_come.clear()
                await self.has_come.wait()
                continue
            self.max_used_blocks = max(self.max_used_blocks, self.model.used_blocks)
            await asyncio.sleep(max(0.0, self.model.end_s - time.monotonic()))
            advanced, _ = self.model.finish_step()
            for sequence in advanced:
                queue = self.queues.get(sequence.arrival.id)
                if queue is not None:
                    queue.put_nowait(sequence.generated)

    async def tokens(self, prompt_tokens: int, output_tokens: int):  # noqa: ANN201
        """The number of each token, as it comes."""
        self.last_id += 1
        number = self.last_id
        queue = self.queues[number] = asyncio.Queue()
        self.model.submit(Arrival(number, "", 0.0, prompt_tokens, output_tokens, ()))
        self.has_come.set()
        try:
            count = 0
            while count < output_tokens:
                reached = await queue.get()
                while count < reached:
                    count += 1
                    yield count
        finally:
            del self.queues[number]
            if count < output_tokens:
                self.num_cancelled += 1
                self.model.cancel(number)

    async def complete(self, request: Request) -> Response:
        """A completion."""
        self.latest = fields = await request.json()
        self.completed[fields.get("model", "")] += 1
        text = fields.get("prompt") or json.dumps(fields.get("messages"))
        prompt_tokens = max(1, len(text) // CHARACTERS_PER_TOKEN)
        output_tokens = fields.get("min_tokens") or fields["max_tokens"]
        if fields.get("stream"):
            padding = fields.get("user") or self.padding
            events = self._events(prompt_tokens, output_tokens, padding)
            return StreamingResponse(events, media_type="text/event-stream")
        words = [f"{number} " async for number in self.tokens(prompt_tokens, output_tokens)]
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(words)}
        return JSONResponse({"choices": [{"text": "".join(words)}], "usage": usage})

    async def _events(self, prompt_tokens: int, output_tokens: int, padding: str):  # noqa: ANN202
        async for number in self.tokens(prompt_tokens, output_tokens):
            if self.is_failing:
                raise ConnectionError("the stub was told to break off")
            yield f'data: {{"choices": [{{"text": "{number} {padding}"}}]}}\n\n'.encode()
        yield b"data: [DONE]\n\n"

    async def encode(self, request: Request) -> Response:
        """An embedding of each input; what it says has no meaning."""
        fields = await request.json()
        self.encoded = fields
        return JSONResponse({"data": [{"embedding": [0.0]}], "usage": {"prompt_tokens": 1}})

    async def metrics(self, request: Request) -> Response:
        """What vLLM would say."""
        del request
        while self.is_silent:
            await asyncio.sleep(0.05)
        usage = self.model.used_blocks / self.model.num_blocks
        label = f'{{model_name="{MODEL}"}}'
        return PlainTextResponse(
            f"vllm:kv_cache_usage_perc{label} {usage}\n"
            f"vllm:num_preemptions_total{label} {self.model.num_preemptions}\n"
        )

    async def health(self, request: Request) -> Response:
        """That it is there."""
        del request
        return Response()

    def app(self) -> Starlette:
        """The application; `run` has to run beside it."""
        return Starlette(
            routes=[
                Route("/v1/completions", self.complete, methods=["POST"]),
                Route("/v1/chat/completions", self.complete, methods=["POST"]),
                Route("/v1/embeddings", self.encode, methods=["POST"]),
                Route("/v1/rerank", self.encode, methods=["POST"]),
                Route("/v1/score", self.encode, methods=["POST"]),
                Route("/metrics", self.metrics),
                Route("/health", self.health),
            ]
        )


async def serve(port: int, blocks: int, speed: Speed) -> None:
    """Serves until it is interrupted."""
    import uvicorn

    engine = StubEngine(EngineModel("stub", blocks, speed))
    task = asyncio.create_task(engine.run())
    config = uvicorn.Config(
        engine.app(),
        port=port,
        log_level="error",
        access_log=False,
        lifespan="off",
        backlog=2048,
        timeout_keep_alive=60,
    )
    await uvicorn.Server(config).serve()
    task.cancel()


def main() -> None:
    """Reads the options."""
    usual = Speed()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--blocks", type=int, default=2560)
    parser.add_argument("--step", type=float, default=usual.step_s, help="seconds of a step")
    parser.add_argument("--prompt-token", type=float, default=usual.prompt_token_s, help="seconds")
    parser.add_argument("--sequences", type=int, default=usual.max_sequences)
    options = parser.parse_args()
    speed = Speed(
        step_s=options.step, prompt_token_s=options.prompt_token, max_sequences=options.sequences
    )
    asyncio.run(serve(options.port, options.blocks, speed))


if __name__ == "__main__":
    main()
