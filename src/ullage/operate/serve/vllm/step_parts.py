"""The parts of a step whose time depends on what the scheduler knows: contexts and numbers of
tokens.

parts = find_parts(engine, "config.json", "h100-80gb")
parts.correct(seconds, works, tokens)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ullage.clock.given_work import GivenWork
from ullage.facts.families.architecture import read_model
from ullage.facts.families.config import read_config
from ullage.facts.gpus import find_gpu
from ullage.operate.serve.attention_times import AttentionTimes
from ullage.operate.serve.expert_times import ExpertTimes

if TYPE_CHECKING:
    from ullage.operate.serve.vllm.engine_core import Engine


class StepParts(NamedTuple):
    """Attention, and the experts of a model that has some."""

    attention: AttentionTimes
    experts: ExpertTimes

    def correct(self, seconds: float, works: Iterable[GivenWork], tokens: int) -> float:
        """The seconds of a step, from those by the clock: of attention its kernels' starts are
        left, and of the experts those count that this many tokens choose.
        """
        given = [*works]
        return self.experts.correct(self.attention.without(seconds, given), given, tokens)


def find_parts(engine: Engine, config: str, gpu: str) -> StepParts:
    """The parts of an engine's steps.

    Args:
        config: the path of the model's config.json.
        gpu: its name.
    """
    fields, on, settings = read_config(config), find_gpu(gpu), engine.config
    ranks = int(settings.parallel_config.tensor_parallel_size)
    dtype = str(settings.cache_config.cache_dtype)
    return StepParts(
        AttentionTimes(on, read_model(fields), ranks, dtype),
        ExpertTimes(on, fields, ranks, settings.model_config.quantization),
    )
