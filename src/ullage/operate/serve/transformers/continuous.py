"""transformers' continuous batching in this process, with a model of random weights.

engine = Engine(folder, ["--cb-max-batch-tokens", "4096"])
engine.add("first", prompt, 200)
engine.step()
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from ullage.facts.gpus import Gpu
from ullage.operate.serve.clock import Clock, seconds_between
from ullage.operate.serve.prompts import make_tokens
from ullage.operate.serve.step_times import StepTimes, step_sizes
from ullage.operate.serve.transformers.read_times import ReadTimes
from ullage.operate.serve.transformers.timed_steps import StepsByTime, Theirs

_LONGEST: Final = 4096  # of a prompt that is measured
# The options of `transformers serve` that say how the cache and the steps are.
_OPTIONS: Final = {
    "cb_block_size": int, "cb_num_blocks": int, "cb_max_batch_tokens": int,
    "cb_max_memory_percent": float,
}  # fmt: skip
_NAMES: Final = {"cb_block_size": "page_size"}


class Engine:
    """The manager, and how requests get into it.

    Attributes:
        ignored: words of the command that are of the HTTP server.
        preempted: how often a request lost its blocks, by its name.
        cached: tokens of its prompt that others had left, by its name.
    """

    def __init__(self, folder: str, arguments: Sequence[str]) -> None:
        import torch
        from transformers import (
            AutoConfig,
            AutoModelForCausalLM,
            ContinuousBatchingConfig,
            GenerationConfig,
        )

        parser = argparse.ArgumentParser(add_help=False)
        for name, kind in _OPTIONS.items():
            parser.add_argument(f"--{name.replace('_', '-')}", type=kind)
        parser.add_argument("--attn-implementation")
        parser.add_argument("--continuous-batching", action="store_true")
        parsed, self.ignored = parser.parse_known_args(list(arguments))
        config = AutoConfig.from_pretrained(folder)
        with torch.device("cuda"):
            self.model = AutoModelForCausalLM.from_config(
                config, dtype=torch.bfloat16, attn_implementation=parsed.attn_implementation
            ).eval()
        self.weights_bytes = torch.cuda.memory_allocated()
        given = {
            _NAMES.get(name, name.removeprefix("cb_")): getattr(parsed, name)
            for name in _OPTIONS
            if getattr(parsed, name) is not None
        }
        self.manager = self.model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),
            # Steps are measured one by one; the default is the same without flash attention.
            continuous_batching_config=ContinuousBatchingConfig(use_async_batching=False, **given),
        )
        self.processor = self.manager._create_batch_processor()
        self.manager.batch_processor = self.processor
        self.cache, self.scheduler = self.processor.cache, self.processor.scheduler
        self.by_time: StepsByTime | None = None
        self.preempted: Counter[str] = Counter()
        self.cached: dict[str, int] = {}
        self._watch()

    def _watch(self) -> None:
        """Notes requests that come back without their blocks, and prompts that are there."""
        add, search = self.scheduler.add_waiting_request, self.cache.search_prefix_match

        def add_waiting(state: Theirs) -> None:
            if state._true_initial_tokens:  # its tokens are a part of its prompt now
                self.preempted[state.request_id] += 1
            add(state)

        def search_prefix(name: str, prompt: list[int]) -> int:
            tokens = int(search(name, prompt))
            self.cached.setdefault(name, tokens)
            return tokens

        self.scheduler.add_waiting_request = add_waiting
        self.cache.search_prefix_match = search_prefix

    def add(self, name: str, prompt: list[int], output: int) -> None:
        """Adds a request.

        Raises:
            ValueError: the model has not this many positions.
        """
        longest = self.longest
        if len(prompt) + output > longest:
            raise ValueError(
                f"a prompt of {len(prompt)} tokens and {output} more are beyond the model's "
                f"{longest} positions"
            )
        self.manager.add_request(prompt, request_id=name, max_new_tokens=output, eos_token_id=-1)

    @property
    def longest(self) -> int:
        """Positions of the model."""
        config = self.model.config.get_text_config()
        return int(getattr(config, "max_position_embeddings", 0) or 2**31)

    def step(self) -> bool:
        """One turn of the manager's loop; False: nothing was given and nothing was waited for.

        Raises:
            RuntimeError: nothing can be scheduled, and no request can give blocks back.
        """
        is_given = self.processor.prepare_next_batch()
        if is_given and self.by_time is None:
            self.processor._generation_step(self.model)
        if self.by_time is None:
            if is_given:
                self.processor.update_batch()
            return bool(is_given)
        steps = self.by_time.given
        if not steps or (is_given and self.processor.use_async_batching and len(steps) < 2):
            return bool(is_given)
        self.processor.update_batch()
        return True

    def use_times(self, steps: StepsByTime) -> None:
        """From now on no kernel is launched, no request is there, and the cache is empty."""
        self.processor.reset()
        self.cache.reset()
        self.by_time = self.processor.inputs_and_outputs = steps
        self.preempted.clear()
        self.cached.clear()

    @property
    def usage_frac(self) -> float:
        """The share of the cache that requests hold."""
        return 1.0 - float(self.cache.compute_free_capacity())

    def prompt_of(self, number: int, tokens: int) -> list[int]:
        """A prompt like that of no other number, from its fourth token on."""
        vocab = int(self.model.config.get_text_config().vocab_size)
        return make_tokens(number, tokens, vocab)

    def describe(self) -> dict[str, Any]:
        """The engine as it started, by its own figures (ullage.operate.serve.outcome.Engine)."""
        import torch
        import transformers

        settings, cache = self.manager.continuous_batching_config, self.cache
        free, total = torch.cuda.mem_get_info()
        size, tokens = int(cache.num_sectors * cache.bytes_per_sector), int(cache.max_tokens_read)
        return {
            "name": "transformers",
            "version": transformers.__version__,
            "weights_bytes": int(self.weights_bytes),
            "peak_activation_bytes": int(
                torch.cuda.max_memory_allocated() - self.weights_bytes - size
            ),
            "kv_cache_bytes": size,
            "num_blocks": int(cache.num_blocks),
            "block_tokens": int(settings.page_size),
            "kv_cache_tokens": tokens,
            "max_concurrency": tokens / self.longest,
            "device_used_bytes": int(total - free),
            "device_bytes": int(total),
            "utilization_frac": float(settings.max_memory_percent),
            "max_model_len": self.longest,
            "max_num_seqs": int(settings.max_requests_per_batch),
            "max_num_batched_tokens": int(cache.max_batch_tokens),
            "is_async": bool(self.processor.use_async_batching),
            "has_prefix_caching": bool(cache.use_prefix_sharing),
            "has_graphs": any(settings.use_cuda_graph),
            "tensor_parallel": 1,
            "ignored": list(self.ignored),
        }

    def reads(self, gpu: Gpu) -> ReadTimes:
        """The times of reads of the cache."""
        config = self.model.config.get_text_config()
        heads = int(config.num_attention_heads)
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        layers = int(config.num_hidden_layers)
        return ReadTimes(gpu, layers, heads, int(kv_heads), int(head_dim))


def measure_steps(engine: Engine, clock: Clock) -> StepTimes:
    """Runs prompts of many sizes on the phantom; what their steps take, which read nothing of the
    cache. A step of as many requests with a token each takes as long but for its reads.
    """
    times = {}
    most = min(engine.cache.max_batch_tokens, engine.longest - 2, _LONGEST)
    for size in step_sizes(int(most)):
        # The first of a size makes tables, and the second tells.
        _, times[size] = (_prompt_s(engine, clock, size, turn) for turn in range(2))
    engine.processor.reset()
    return StepTimes.of(times, times)


def _prompt_s(engine: Engine, clock: Clock, tokens: int, turn: int) -> float:
    prompt = engine.prompt_of(tokens * 1_000_003 + turn, tokens)
    begin = clock.mark()
    engine.add(f"prompt-{tokens}-{turn}", prompt, 1)
    while engine.step():
        pass
    return seconds_between(begin, clock.mark())
