"""A request as the policy knows it, and what is decided about it.

    request = Request(id=1, tenant="chat", model="llama", prompt_tokens=900, max_tokens=256)

The policy never sees a text: the proxy counts tokens and hashes prefixes before it asks.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ullage.ground.config.tables import Count, FileOrName, parser
from ullage.ground.protocol.plain import Misfit, read_at

PREFIX_TOKENS = 256
"""Tokens that a hash in `Request.prefix` stands for."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """The bytes that an engine's cache takes for tokens.

    Attributes:
        token_bytes: bytes of one token, all layers and ranks together.
        block_tokens: tokens of a block; an engine hands out whole blocks.
        fixed_bytes: bytes of a sequence whatever its length, as of recurrent layers.
    """

    token_bytes: int
    block_tokens: int = 16
    fixed_bytes: int = 0

    def bytes_of(self, tokens: int, sequences: int = 1) -> int:
        """Bytes of this many tokens in this many sequences: an upper bound.

        Counts: each sequence's last block as full.
        Ignores: blocks that sequences share; so the bound is loose where prefixes are shared.
        """
        blocks = -(-tokens // self.block_tokens) + sequences - 1
        return blocks * self.block_tokens * self.token_bytes + sequences * self.fixed_bytes


@dataclass(frozen=True, slots=True)
class TokenKeys:
    """The keys for the bytes of a token: these, or a model's name or file."""

    token_bytes: Count | None = None
    architecture: FileOrName | None = None
    kv: str = "bf16"
    block_tokens: Count = 16

    def footprint(self) -> Footprint:
        """The bytes of tokens; raises a Misfit where neither or both are given. Of layers that see
        a window alone all tokens are counted, which is an upper bound.
        """
        # The policy of a replica has its footprint from elsewhere, and needs no models.
        from ullage.facts.families.architecture import read_layers
        from ullage.facts.families.find import find_config
        from ullage.facts.families.kv_cache import state_bytes, token_bytes
        from ullage.facts.families.layers import Recurrent

        if (self.token_bytes is None) is (self.architecture is None):
            raise Misfit(
                'or architecture is needed, not both: architecture = "llama-3.1-8b"', "token_bytes"
            )
        if self.architecture is None:
            return Footprint(self.token_bytes or 1, self.block_tokens)
        layers = read_at(
            "architecture", parser(lambda name: read_layers(find_config(name).config)),
            self.architecture,
        )  # fmt: skip
        fixed = sum(state_bytes(layer) for layer in layers if isinstance(layer, Recurrent))
        size = read_at(
            "kv", parser(lambda kv: sum(token_bytes(layer, kv) for layer in layers)), self.kv
        )
        return Footprint(size, self.block_tokens, fixed)


@dataclass(frozen=True, slots=True)
class Request:
    """The policy's knowledge of a request.

    Attributes:
        id: that nobody else has.
        tenant: who pays.
        model: only engines that serve it are considered.
        prompt_tokens: counted, or an upper bound.
        max_tokens: tokens that each sequence may write at most.
        arrival_s: when it came.
        deadline_s: when its first token has to be there; None: whenever.
        sequences: that are written for it at once (`n`, or several prompts).
        prefix: hashes of the prompt's beginning, each of everything up to it.
        is_streamed: whether its tokens are seen one by one.
    """

    id: int
    tenant: str
    model: str
    prompt_tokens: int
    max_tokens: int
    arrival_s: float = 0.0
    deadline_s: float | None = None
    sequences: int = 1
    prefix: tuple[int, ...] = ()
    is_streamed: bool = True


class Reason(enum.Enum):
    """The reason why a request is not started."""

    TOO_LARGE = "its prompt and max_tokens fit no engine's cache, even alone"
    NO_ENGINE = "no engine that serves this model answers"
    TENANT_QUEUE = "too many requests of this tenant wait"
    QUEUE = "too many requests wait"
    DEADLINE = "its first token cannot come before its deadline"


@dataclass(frozen=True, slots=True)
class Start:
    """The request goes to an engine now; `output_tokens` of each sequence are expected."""

    request: Request
    engine: str
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Reject:
    """The request is answered with an error; `retry_after_s` is when trying again may help, None
    where it never will.
    """

    request: Request
    reason: Reason
    retry_after_s: int | None


Decision = Start | Reject
