"""A model of a server with a paged cache, continuous batching and preemption by recompute.

A step computes one token of each running request and, with what its token budget leaves, the
prompts of those that were admitted, in their order. A request is admitted when the blocks of its
whole prompt are free. Where a running request needs a block and none is free, the one that was
admitted last loses its blocks and begins anew. Blocks that nobody uses any more stay cached, by the
hash of the prompt up to them, until they are needed. So does vLLM (v1/core/sched, of 0.32) by
default.

The time of a step is linear in what it does: see `Speed`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from benchmarks.front.traffic import Arrival
from ullage.operate.front.policy.request import PREFIX_TOKENS

BLOCK = 16
PER_HASH = PREFIX_TOKENS // BLOCK
MAX_STEPS = 8  # that are computed at once where nothing happens in them


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of a step: at rest, for each sequence, each prompt token, each token in the cache
    (of an 8B model in bf16: 128 KiB at 3.3 TB/s), and how much a step computes.
    """

    step_s: float = 0.008
    sequence_s: float = 5e-5
    prompt_token_s: float = 5e-5
    cached_token_s: float = 4e-8
    max_step_tokens: int = 1024
    max_sequences: int = 256


@dataclass(slots=True)
class Sequence:
    """A request in the engine."""

    arrival: Arrival
    to_compute: int = 0  # of prompt (and, after a preemption, of the answer so far)
    generated: int = 0
    blocks: int = 0  # of its own
    hashes: tuple[int, ...] = ()  # whose blocks it shares

    @property
    def tokens(self) -> int:
        """Prompt and answer so far."""
        return self.arrival.prompt_tokens + self.generated


@dataclass(slots=True)
class EngineModel:
    """An engine; `end_s` is when the step that runs ends, None where there is none."""

    name: str
    num_blocks: int
    speed: Speed = field(default_factory=Speed)
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    end_s: float | None = None
    num_preemptions: int = 0
    used_blocks: int = 0
    _uses: dict[int, int] = field(default_factory=dict)
    _cached: OrderedDict[int, None] = field(default_factory=OrderedDict)
    _steps: int = 0
    _computed: list[tuple[Sequence, int]] = field(default_factory=list)

    @property
    def free_blocks(self) -> int:
        """Blocks that no running request uses; some have a cached prefix in them."""
        return self.num_blocks - self.used_blocks

    @property
    def num_requests(self) -> int:
        """Waiting and running."""
        return len(self.waiting) + len(self.running)

    def submit(self, arrival: Arrival) -> None:
        """Takes a request."""
        self.waiting.append(Sequence(arrival))

    def cancel(self, number: int) -> None:
        """Ends a request, between two steps."""
        for sequence in [each for each in self.waiting if each.arrival.id == number]:
            self.waiting.remove(sequence)
        for sequence in [each for each in self.running if each.arrival.id == number]:
            self._release(sequence)
            self.running.remove(sequence)

    def begin(self, now_s: float, until_s: float) -> None:
        """Begins a step, or several that are alike and end about `until_s`; none if it is idle."""
        is_preempted = self._make_room()
        if not is_preempted:
            self._admit()
        if not self.running:
            self.end_s = None
            return
        budget = self.speed.max_step_tokens
        decoding = [each for each in self.running if not each.to_compute]
        budget -= len(decoding)
        self._computed = []
        for sequence in self.running:
            chunk = min(sequence.to_compute, budget)
            if chunk > 0:
                self._computed.append((sequence, chunk))
                budget -= chunk
        prompt_tokens = sum(chunk for _, chunk in self._computed)
        step_s = self._step_s(len(decoding), prompt_tokens)
        self._steps = 1 if self._computed else self._alike(step_s, until_s - now_s)
        self.end_s = now_s + step_s * self._steps

    def finish_step(self) -> tuple[list[Sequence], list[Sequence]]:
        """Ends the step: those that have new tokens, and of them those that are complete."""
        chunks = {id(sequence): chunk for sequence, chunk in self._computed}
        advanced, complete = [], []
        for sequence in self.running:
            if sequence.to_compute:
                sequence.to_compute -= chunks.get(id(sequence), 0)
                if sequence.to_compute:
                    continue
                sequence.generated += 1
            else:
                sequence.generated += self._steps
            self._grow(sequence)
            advanced.append(sequence)
            if sequence.generated >= sequence.arrival.output_tokens:
                complete.append(sequence)
        for sequence in complete:
            self._release(sequence)
            self.running.remove(sequence)
        self.end_s = None
        return advanced, complete

    def _step_s(self, decoding: int, prompt_tokens: int) -> float:
        speed = self.speed
        cached = self.used_blocks * BLOCK
        return (
            speed.step_s + speed.sequence_s * decoding + speed.prompt_token_s * prompt_tokens
            + speed.cached_token_s * cached
        )  # fmt: skip

    def _alike(self, step_s: float, within_s: float) -> int:
        """Steps until one ends, the time is over, or a block is missing."""
        steps = min(each.arrival.output_tokens - each.generated for each in self.running)
        steps = min(steps, MAX_STEPS, max(1, int(within_s / step_s) + 1))
        while steps > 1 and self._missing(steps) > self.free_blocks:
            steps //= 2
        return max(1, steps)

    def _missing(self, steps: int) -> int:
        """Blocks that so many steps of all that decode need."""
        return sum(
            max(0, -(-(each.tokens + steps) // BLOCK) - self._blocks_of(each))
            for each in self.running
            if not each.to_compute
        )

    def _make_room(self) -> bool:
        """Preempts until every running request can have its next token."""
        is_preempted = False
        while self.running and self._missing(1) > self.free_blocks:
            victim = self.running.pop()
            self._release(victim)
            self.waiting.appendleft(victim)
            self.num_preemptions += 1
            is_preempted = True
        return is_preempted

    def _admit(self) -> None:
        budget = self.speed.max_step_tokens
        spoken_for = self._missing(1)  # by those that run
        while self.waiting and len(self.running) < self.speed.max_sequences and budget > 0:
            sequence = self.waiting[0]
            hashes = self._matching(sequence.arrival.prefix)
            fresh = sum(1 for value in hashes if value not in self._uses)
            total = -(-(sequence.tokens + 1) // BLOCK)
            if total - PER_HASH * (len(hashes) - fresh) > self.free_blocks - spoken_for:
                return
            self.waiting.popleft()
            sequence.hashes = sequence.arrival.prefix
            # The last token is computed in any case, else there is nothing to sample from.
            sequence.to_compute = max(1, sequence.tokens - PREFIX_TOKENS * len(hashes))
            budget -= sequence.to_compute
            for value in sequence.hashes:
                self._cached.pop(value, None)
                if value not in self._uses:
                    self._take(PER_HASH)
                self._uses[value] = self._uses.get(value, 0) + 1
            sequence.blocks = 0
            self.running.append(sequence)
            self._grow(sequence, 1)

    def _matching(self, prefix: tuple[int, ...]) -> list[int]:
        matching = []
        for value in prefix:
            if value not in self._uses and value not in self._cached:
                break
            matching.append(value)
        return matching

    def _blocks_of(self, sequence: Sequence) -> int:
        return sequence.blocks + PER_HASH * len(sequence.hashes)

    def _grow(self, sequence: Sequence, ahead: int = 0) -> None:
        needed = -(-(sequence.tokens + ahead) // BLOCK) - self._blocks_of(sequence)
        if needed > 0:
            sequence.blocks += needed
            self._take(needed)

    def _take(self, blocks: int) -> None:
        self.used_blocks += blocks
        while self.used_blocks + PER_HASH * len(self._cached) > self.num_blocks and self._cached:
            self._cached.popitem(last=False)
        if self.used_blocks > self.num_blocks:
            raise RuntimeError(f"{self.used_blocks} of {self.num_blocks} blocks are used")

    def _release(self, sequence: Sequence) -> None:
        self.used_blocks -= sequence.blocks
        sequence.blocks = 0
        for value in reversed(sequence.hashes):
            self._uses[value] -= 1
            if not self._uses[value]:
                del self._uses[value]
                self.used_blocks -= PER_HASH
                self._cached[value] = None
        sequence.hashes = ()
