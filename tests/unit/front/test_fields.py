"""What is sent to an engine is what was counted: each text of a body is in its prompt's tokens, and
what is not known is refused with its name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.rows import each
from tests.unit.front.conftest import RunFront

pytest.importorskip("httptools", reason="needs the extra ullage[front]")

from tests.unit.front.sockets import KEYS, Setup

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EMBEDDINGS, RERANK, SCORE = "/v1/embeddings", "/v1/rerank", "/v1/score"
LONG = "word " * 800  # 1,000 tokens
DATA = {"url": "data:image/png;base64,AA"}
IMAGE = {"type": "image_url", "image_url": DATA}


def chat(**more: Any) -> tuple[str, dict[str, Any]]:
    """A chat of one short message, and other fields."""
    return CHAT, {"messages": [{"role": "user", "content": "x"}], **more}


def parts(*given: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    """A chat of one message in parts."""
    return CHAT, {"messages": [{"role": "user", "content": [*given], **more}]}


def message(**fields: Any) -> tuple[str, dict[str, Any]]:
    """A chat with a message of an assistant."""
    return CHAT, {"messages": [{"role": "assistant", "content": "x", **fields}]}


COUNTED: dict[str, tuple[str, dict[str, Any]]] = {
    "a text": parts({"type": "text", "text": LONG}),
    "a text of the other API": parts({"type": "input_text", "text": LONG}),
    "a refusal": parts({"type": "refusal", "refusal": LONG}),
    "a thought": parts({"type": "thinking", "thinking": LONG}),
    "a text beside an image": parts(IMAGE, {"type": "text", "text": LONG}),
    "an answer of a tool": (CHAT, {"messages": [
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": LONG}]}]}),
    "arguments of a call": message(tool_calls=[
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": LONG}}]),
    "an old call": message(function_call={"name": "f", "arguments": LONG}),
    "a name": message(name=LONG),
    "a role": (CHAT, {"messages": [{"role": LONG, "content": "x"}]}),
    "reasoning": message(reasoning=LONG),
    "reasoning of SGLang": message(reasoning_content=LONG),
    "a refused answer": message(refusal=LONG),
    "tools": chat(tools=[{"type": "function", "function": {"name": "f", "description": LONG}}]),
    "functions": chat(functions=[{"name": "f", "parameters": {"enum": [LONG]}}]),
    "a key of a schema": chat(response_format={"json_schema": {"schema": {LONG: 1}}}),
    "documents": chat(documents=[{"title": "a", "text": LONG}]),
    "a prediction": chat(prediction={"type": "content", "content": LONG}),
    "a schema of vLLM": chat(guided_json={"enum": [LONG]}),
    "choices": chat(structured_outputs={"choice": [LONG]}),
    "a grammar": chat(ebnf=LONG),
    "an effort": chat(reasoning_effort=LONG),
    "a word of the template": chat(chat_template_kwargs={"thinking": LONG}),
    "a choice of a tool": chat(tool_choice={"type": "function", "function": {"name": LONG}}),
    "a suffix": (COMPLETIONS, {"prompt": "x", "suffix": LONG}),
    "tokens": (COMPLETIONS, {"prompt": [1] * 1000}),
    "lists of tokens": (COMPLETIONS, {"prompt": [[1] * 500, [2] * 500]}),
    "an instruction for each document": (
        RERANK, {"query": "x", "documents": ["a"] * 4, "instruct": LONG[:1000]}),
}  # fmt: skip
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a text beside no image": (*parts({"type": "text", "text": LONG, "image_url": None}), "image"),
    "a text in an image": (*parts({**IMAGE, "text": LONG}), "'text'"),
    "an image in a text": (*parts({"type": "text", "text": "x", "image_url": DATA}), "image_url"),
    "two images in one": (*parts({**IMAGE, "video_url": DATA}), "video_url"),
    "a part without a type": (*parts({"text": LONG}), "the type"),
    "a part that is a text": (*parts(LONG), "the type"),
    "a type in capitals": (*parts({"type": "Text", "text": LONG}), "'Text'"),
    "a type that is a list": (*parts({"type": ["text"], "text": LONG}), "the type"),
    "an image that was sent before": (*parts({"type": "image_url", "image_url": None}), "image"),
    "an image by its number": (*parts({**IMAGE, "uuid": "a"}), "uuid"),
    "patches of an image": (*parts({"type": "image_url", "image_url": {
        **DATA, "max_dynamic_patch": 99}}), "image_url"),
    "an embedding of an image": (*parts({"type": "image_embeds", "image_embeds": "AA"}), "embeds"),
    "an embedding of a prompt": (*parts({"type": "prompt_embeds", "data": "AA"}), "prompt_embeds"),
    "a picture of Python": (*parts({"type": "image_pil", "image_pil": "AA"}), "image_pil"),
    "a tool by its name": (*parts({"type": "tool_reference", "name": "f"}), "tool_reference"),
    "a message of more": (*message(images=[LONG]), "'images'"),
    "a sound of a message": (*message(audio={"id": "a"}), "'audio'"),
    "messages beside an input": (
        EMBEDDINGS, {"input": "x", "messages": [{"role": "user", "content": LONG}]}, "messages"),
    "messages beside a prompt": (COMPLETIONS, {"prompt": "x", "messages": [LONG]}, "messages"),
    "a prompt beside messages": (*chat(prompt=LONG), "'prompt'"),
    "tokens beside messages": (*chat(input_ids=[1] * 1000), "input_ids"),
    "a text of another number": (
        SCORE, {"text_1": "x", "text_2": "y", "text_3": LONG}, "text_3"),
    "data of another number": (SCORE, {"text_1": "x", "text_2": "y", "data_1": LONG}, "data_1"),
    "queries": (SCORE, {"text_1": "x", "text_2": "y", "queries": [LONG]}, "queries"),
    "embeddings in place of tokens": (EMBEDDINGS, {"input": "x", "embed_overrides": [[[1.0]]]},
                                      "embed_overrides"),
    "padding": (EMBEDDINGS, {"input": "x", "padding": "max_length"}, "padding"),
    "another template": (*chat(chat_template="{{ x }}"), "chat_template"),
    "a template in a word": (*chat(chat_template_kwargs={"chat_template": "x"}), "chat_template"),
    "an unknown word": (*chat(chat_template_kwargs={"say": LONG}), "chat_template_kwargs.say"),
    "words that are a text": (*chat(chat_template_kwargs=LONG), "chat_template_kwargs"),
    "a name in capitals": (*chat(Messages=[LONG]), "'Messages'"),
    "a name with a space": (*chat(**{"tools ": LONG}), "'tools '"),
    "a long user": (*chat(user=LONG * 5), "user"),
    "a long salt": (*chat(cache_salt=LONG * 5), "cache_salt"),
    "long metadata": (*chat(metadata={"a": [LONG * 5]}), "metadata"),
    "many stops": (*chat(stop=["x"] * 9000), "stop"),
    "a million biases": (*chat(logit_bias={str(n): 1 for n in range(2000)}), "logit_bias"),
    "a bound of chats": (COMPLETIONS, {"prompt": "x", "max_completion_tokens": 9}, "max_compl"),
    **{f"the engine's {name}": (*chat(**{name: value}), name) for name, value in {
        "bootstrap_host": "evil.example", "bootstrap_port": 1, "bootstrap_room": 1,
        "logits_processors": ["os.system"], "custom_logit_processor": "x", "custom_params": {},
        "vllm_xargs": {"a": 1}, "kv_transfer_params": {"a": 1}, "ec_transfer_params": {"a": 1},
        "routed_dp_rank": 1, "disagg_prefill_dp_rank": 1, "data_parallel_rank": 1, "rid": "x",
        "session_params": {"id": "a"}, "session_id": "a", "extra_key": "a", "lora_path": "/etc",
        "mm_processor_kwargs": {"a": 1}, "media_io_kwargs": {"a": {}}, "images_config": {},
        "priority": -9, "request_id": "a", "generation_config": "{}", "processor": "/etc",
        "prompt_embeds": "AA", "input_embeds": [[1.0]], "max_dynamic_patch": 9,
        "return_hidden_states": True, "stream_interval": 99, "stream_reasoning": False,
        "use_beam_search": True, "guided_decoding_backend": "x", "ngram_corpus_id": "x",
        "audio": {"voice": LONG}, "unheard_of": None,
    }.items()},
}  # fmt: skip
FREE = {
    "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 7, "stop": ["a", "b"],
    "logit_bias": {"5": -100}, "user": "me", "metadata": {"a": "b"}, "logprobs": True,
    "stream_options": {"include_usage": True}, "repetition_penalty": 1.1, "ignore_eos": True,
    "presence_penalty": 0, "frequency_penalty": None, "min_tokens": 1, "cache_salt": "a",
    "prompt_logprobs": 1, "echo": False, "n": 2, "max_completion_tokens": 2, "max_tokens": 2,
    "parallel_tool_calls": False, "tools": None, "response_format": {"type": "text"},
}  # fmt: skip
MORE = "media_tokens = 50\n"


def test_each_text_is_counted(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        counts = {}
        for name, (path, fields) in COUNTED.items():
            answer = await setup.ask({"max_tokens": 1, **fields} if path in (CHAT, COMPLETIONS)
                                     else fields, path=path)  # fmt: skip
            counts[name] = int(answer.headers.get("x-ullage-prompt-tokens", 0)), answer.text[:200]
        assert {name: count for name, count in counts.items() if count[0] < 1000} == {}

    run_front(scenario, blocks=512, engines_more="", more="", each_engine=MORE)


def test_what_is_not_known_is_refused_with_its_name(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        wrong = {}
        for name, (path, fields, words) in REFUSED.items():
            answer = await setup.ask(fields, path=path)
            if answer.status_code != 400 or words not in answer.json()["error"]["message"]:
                wrong[name] = answer.status_code, answer.text[:200]
        assert wrong == {}
        assert setup.stubs[0].engine.last_id == 0 and not setup.stubs[0].engine.encoded

    run_front(scenario, blocks=512, each_engine=MORE)


def test_what_is_known_and_harmless_passes(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        answer = await setup.ask(chat(**FREE)[1], path=CHAT)
        assert answer.status_code == 200, answer.text
        assert setup.stubs[0].engine.latest == {"model": "stub", **chat(**FREE)[1]}

    run_front(scenario)


def test_an_operator_names_more_fields(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        free = await setup.ask(chat(budget=5, max_tokens=1)[1], path=CHAT)
        text = await setup.ask(chat(note="x" * 400, max_tokens=1)[1], path=CHAT)
        word = {"chat_template_kwargs": {"date": "x" * 800}}
        inner = await setup.ask(chat(**word, max_tokens=1)[1], path=CHAT)
        counts = [int(each.headers["x-ullage-prompt-tokens"]) for each in (free, text, inner)]
        assert counts[1] - counts[0] == 100 and counts[2] - counts[0] == 200
        refused = await setup.ask(chat(other=5)[1], path=CHAT)
        assert 'fields."other" = "free"' in refused.json()["error"]["message"]

    fields = 'fields.budget = "free"\nfields.note = "text"\n'
    run_front(scenario, more=fields + 'fields."chat_template_kwargs.date" = "text"')


@each(
    ("text", "status"),
    [
        ('{"model": "stub", "prompt": "x", "p\\u0072iority": 9}', 400),
        ('{"model": "stub", "prompt": "x", "max_tokens": 1, "\\u006dax_tokens": 1}', 200),
        ('{"model": "stub", "prompt": "\\ud800", "max_tokens": 1}', 400),
        ('{"model": "stub", "prompt": "x", "max_tokens": 1, "seed": 99999999999999999999}', 400),
        ('{"model": "stub", "prompt": "x", "max_tokens": 1, "seed": 1e30}', 400),
        ('{"model": "stub", "prompt": "x", "max_tokens": 1, "top_p": Infinity}', 400),
        ('\ufeff{"model": "stub", "prompt": "x", "max_tokens": 1}', 400),
        ('{"model": "stub", "prompt": "x", "max_tokens": 1} {}', 400),
    ],
)
def test_texts_that_two_parsers_could_read_differently(
    run_front: RunFront, text: str, status: int
) -> None:
    async def scenario(setup: Setup) -> None:
        headers = {"authorization": f"Bearer {KEYS['chat']}", "content-type": "application/json"}
        answer = await setup.client.post(COMPLETIONS, content=text.encode(), headers=headers)
        assert answer.status_code == status

    run_front(scenario)


def test_of_a_field_that_comes_twice_none_is_hidden(run_front: RunFront) -> None:
    """The last is counted, and it alone is sent."""

    async def scenario(setup: Setup) -> None:
        text = b'{"model": "stub", "prompt": "x", "max_tokens": 1, "prompt": "%b"}' % (b"x" * 400)
        headers = {"authorization": f"Bearer {KEYS['chat']}", "content-type": "application/json"}
        answer = await setup.client.post(COMPLETIONS, content=text, headers=headers)
        assert answer.headers["x-ullage-prompt-tokens"] == "101"
        assert setup.stubs[0].engine.latest == {**json.loads(text)}

    run_front(scenario)


def test_a_field_is_free_or_text(tmp_path: Path) -> None:
    from tests.unit.front.test_settings import GOOD, load

    from ullage.ground.errors import SpecError

    (tmp_path / "chat").write_text("chat" * 5)
    with pytest.raises(SpecError, match=r"front.fields.a is 'x'; expected free or text"):
        load(tmp_path, GOOD.replace("[front]", '[front]\nfields.a = "x"'))
