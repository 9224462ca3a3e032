"""The fields of requests that engines know, and how each is treated.

FREE passes: it is not a part of a prompt, and has 16 KiB of JSON at most. TEXT is counted as a part
of the prompt. All others are refused: they reach into the engine, no bound on their tokens is known
(embeddings, padding, patches of images), or an event of the stream is then more than a token
(`stream_interval`, `stream_reasoning`). The table [front] of the configuration may name more.

Read from vLLM 0.33 (vllm/entrypoints/openai/chat_completion/protocol.py and completion/protocol.py
at 002032ee, pooling/base at 020638a6, pooling/scoring at 004706d8; `guided_` from before 0.12),
SGLang 0.5 (srt/entrypoints/openai/protocol.py at 004c82e0), transformers serve 5
(cli/serving/chat_completion.py and utils.py at 0084b910) and OpenAI's API.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ullage.operate.doors.refusal import Refusal

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"
RERANK: Final = "/v1/rerank"
SCORE: Final = "/v1/score"
_MAX_FREE_BYTES: Final = 16 * 1024
_KWARGS: Final = "chat_template_kwargs"


class Use(enum.Enum):
    """The treatment of a field."""

    READ = "read"  # by the front itself
    FREE = "free"
    TEXT = "text"


_SAMPLING: Final = """
    add_special_tokens allowed_token_ids bad_words cache_salt echo frequency_penalty ignore_eos
    include_stop_str_in_output length_penalty logit_bias logprob_token_ids logprobs metadata min_p
    min_tokens no_stop_trim presence_penalty prompt_logprobs repetition_detection repetition_penalty
    return_cached_tokens_details return_token_ids return_tokens_as_token_ids seed service_tier
    skip_special_tokens spaces_between_special_tokens stop stop_regex stop_token_ids store
    stream_options temperature thinking_token_budget top_k top_p truncate_prompt_tokens
    truncation_side user watermarking"""
_FORMATS: Final = """
    ebnf guided_choice guided_grammar guided_json guided_regex json_schema regex response_format
    structured_outputs"""
_POOLING: Final = """
    add_special_tokens cache_salt truncate_prompt_tokens truncation_side use_activation user"""


def _make(read: str, free: str, text: str = "") -> dict[str, Use]:
    return {
        name: use
        for use, names in zip(Use, (read, free, text), strict=True)
        for name in names.split()
    }


FIELDS: Final = {
    CHAT: _make(
        "messages model stream n max_tokens max_completion_tokens",
        _SAMPLING + """
        add_generation_prompt continue_final_message include_reasoning parallel_tool_calls
        prompt_cache_key return_prompt_token_ids safety_identifier separate_reasoning top_logprobs
        verbosity""",
        _FORMATS + f"""
        documents function_call functions prediction reasoning reasoning_effort task tool_choice
        tools {_KWARGS}.clear_thinking {_KWARGS}.enable_thinking {_KWARGS}.preserve_thinking
        {_KWARGS}.reasoning_effort {_KWARGS}.thinking {_KWARGS}.thinking_budget""",
    ),
    COMPLETIONS: _make(
        "prompt model stream n best_of max_tokens", _SAMPLING, _FORMATS + " suffix"
    ),
    EMBEDDINGS: _make(
        "input model stream",
        _POOLING + " dimensions embed_dtype encoding_format endianness normalize",
    ),
    RERANK: _make(
        "query documents model stream", _POOLING + " return_documents top_n", "instruct"
    ),
    SCORE: _make("text_1 text_2 model stream", _POOLING),
}  # fmt: skip


def read_fields(fields: Mapping[str, Any], path: str, more: Mapping[str, Use]) -> str:
    """The text in the fields beside the prompt.

    Args:
        fields: of a body.
        path: that it was sent to.
        more: fields that the operator names.

    Raises:
        Refusal: one of them is not known, or is larger than what passes without being counted.
    """
    known = FIELDS[path]
    texts = []
    for name, value in _flatten(fields):
        use = known.get(name) or more.get(name)
        if use is None:
            raise Refusal(
                400,
                f"the field {name[:100]!r} is not taken here; leave it out, or let the operator of "
                f'this server name it in [front]: fields."{name[:100]}" = "free" or "text"',
            )
        if use is Use.TEXT and value is not None:
            texts.append(write_text(value))
        elif use is Use.FREE and isinstance(value, str | list | dict):
            size = len(write_text(value).encode())
            if size > _MAX_FREE_BYTES:
                raise Refusal(
                    400, f"{name} has {size} bytes of JSON; expected {_MAX_FREE_BYTES} or fewer"
                )
    return "\n".join(texts)


def write_text(value: object) -> str:
    """A value as a chat template may write it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _flatten(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if name == _KWARGS and isinstance(value, dict):
            yield from ((f"{name}.{inner}", each) for inner, each in value.items())
        else:
            yield name, value
