"""How long a step takes by closed forms: the kernels of `ullage estimate --time`, without the
engine.

seconds = StepSeconds(config, plan, gpu)
seconds(decodes=32, contexts=48_000, prompts=[(512, 512)])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ullage.facts.families.architecture import read_model
from ullage.facts.families.config import Config
from ullage.facts.gpus import Gpu
from ullage.operate.serve.attention_times import AttentionTimes
from ullage.operate.serve.step_times import StepTimes, step_sizes
from ullage.players.eager.serving.serving_plan import ServingPlan
from ullage.players.eager.time.serving import step_interval

_CONTEXT: Final = 16


class StepSeconds:
    """The seconds of steps, priced once for a table of sizes.

    Counts: what `ullage serve` counts: a step without its attention by its size, and attention by
    the contexts.
    Ignores: scheduling on the CPU.
    Error: that of the kernels' tables, and of the closed forms (docs/results/estimates.md).
    """

    def __init__(self, config: Config, plan: ServingPlan, gpu: Gpu) -> None:
        self._attention = AttentionTimes(gpu, read_model(config), plan.tensor_parallel, plan.kv)
        seqs, tokens = plan.max_seqs or 256, plan.max_batched_tokens or 2048
        decode, prefill = {}, {}
        for size in step_sizes(seqs):
            whole = step_interval(config, plan, size, size, _CONTEXT).s
            decode[size] = max(0.0, whole - self._attention.decode_s(size, _CONTEXT))
        for size in step_sizes(tokens):
            if size > 1:
                whole = step_interval(config, plan, size, 1, size).s
                prefill[size] = max(0.0, whole - self._attention.prefill_s(size, size))
        self._times = StepTimes.of(decode, prefill or decode)

    def __call__(self, decodes: int, contexts: int, prompts: Sequence[tuple[int, int]]) -> float:
        """Seconds of a step; see `ullage.operate.serve.forecast.simulation.Seconds`."""
        attention_s = self._attention.decode_s(decodes, contexts / decodes) if decodes else 0.0
        attention_s += sum(self._attention.prefill_s(*prompt) for prompt in prompts)
        size = decodes + sum(tokens for tokens, _ in prompts)
        return attention_s + self._times.seconds(size, is_decode=not prompts)
