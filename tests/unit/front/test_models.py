"""Encoders, versions of a model, adapters, and engines that are drained: on sockets."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.unit.front.conftest import RunFront

pytest.importorskip("httptools", reason="needs the extra ullage[front]")

from tests.unit.front.sockets import Setup

ENCODED: dict[str, tuple[str, dict[str, Any], int]] = {
    "a text": ("/v1/embeddings", {"input": "x" * 40}, 14),
    "texts": ("/v1/embeddings", {"input": ["x" * 40, "x" * 4]}, 19),
    "tokens": ("/v1/embeddings", {"input": [1, 2, 3]}, 7),
    "lists of tokens": ("/v1/embeddings", {"input": [[1, 2, 3], [4]]}, 12),
    "a query with documents": (
        "/v1/rerank", {"query": "x" * 8, "documents": ["x" * 40, "x" * 4]}, 23,
    ),
    "a pair": ("/v1/score", {"text_1": "x" * 8, "text_2": "x" * 8}, 8),
    "one and many": ("/v1/score", {"text_1": "x" * 8, "text_2": ["x" * 8, "x" * 4]}, 15),
}  # fmt: skip
WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "no input": ("/v1/embeddings", {}),
    "an empty list": ("/v1/embeddings", {"input": []}),
    "a number": ("/v1/embeddings", {"input": ["x", 5]}),
    "a stream": ("/v1/embeddings", {"input": "x", "stream": True}),
    "too many": ("/v1/embeddings", {"input": ["x"] * 3000}),
    "larger than the cache": ("/v1/embeddings", {"input": "x" * 200_000}),
    "no documents": ("/v1/rerank", {"query": "x"}),
    "documents elsewhere": ("/v1/embeddings", {"input": "x", "documents": ["x"]}),
    "texts that do not match": ("/v1/score", {"text_1": ["x", "y"], "text_2": ["x"]}),
}


def test_encoders_are_counted_by_their_inputs(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        for name, (path, fields, tokens) in ENCODED.items():
            answer = await setup.ask(fields, path=path)
            assert answer.status_code == 200, name
            assert answer.headers["x-ullage-prompt-tokens"] == str(tokens), name
            assert setup.stubs[0].engine.encoded == {"model": "stub", **fields}, name
        for name, (path, fields) in WRONG.items():
            assert (await setup.ask(fields, path=path)).status_code == 400, name
        admission = setup.app.board.admission
        assert admission.lengths.predict("chat", 100) == 100  # an embedding is no answer's length
        assert all(not each.pending_tokens for each in admission.engines.values())

    run_front(scenario)


VERSIONS = """
[front.engine.second]
url = "http://127.0.0.1:{port}"
models = ["new"]
cache = "1024KiB"
token_bytes = 1024
[front.model.any]
stub = 3
new = 1
"""


def test_versions_get_their_shares_and_a_drained_one_none(run_front: RunFront) -> None:
    async def ask(setup: Setup, count: int) -> Counter[str]:
        models: Counter[str] = Counter()
        for _ in range(count):
            answer = await setup.ask({"model": "any", "prompt": "x", "max_tokens": 1})
            assert answer.status_code == 200
            models[answer.headers["x-ullage-model"]] += 1
        return models

    async def scenario(setup: Setup) -> None:
        (stub,) = setup.stubs
        assert await ask(setup, 8) == {"stub": 6, "new": 2}
        assert stub.engine.completed == {"stub": 6, "new": 2}
        url = f"/admin/engines/e{stub.port}/drain"
        assert (await setup.client.post(url)).status_code == 415  # as a form would be
        drained = await setup.client.post(url, json={})
        assert drained.json() == {"engine": f"e{stub.port}", "draining": True, "running": 0}
        assert await ask(setup, 4) == {"new": 4}
        assert (await setup.ask({"prompt": "x", "max_tokens": 1})).status_code == 503
        assert "ullage_front_engine_draining" in (await setup.client.get("/metrics")).text
        await setup.client.post(url.replace("drain", "resume"), json={})
        assert (await ask(setup, 8))["stub"] == 6
        assert (await setup.client.post("/admin/engines/x/drain", json={})).status_code == 404
        assert "any" in {
            row["id"]
            for row in (
                await setup.client.get(
                    "/v1/models", headers={"authorization": f"Bearer {'chat-' + 'c' * 20}"}
                )
            ).json()["data"]
        }

    run_front(scenario, engines_more=VERSIONS)
