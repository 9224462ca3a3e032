"""How long the products of experts take in a step, by the tokens that choose among them.

    experts = ExpertTimes(find_gpu("h100-80gb"), config, ranks=2)
    experts.seconds(tokens=8)

The arguments of a kernel hold the weights of all experts, and the clock prices a launch with all of
them (clock/costs/launches.py). A server's step has few tokens, which choose some of them: how many
tokens there are, the scheduler knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

from ullage.clock.costs import cost_of
from ullage.clock.costs.kernel_names import Rule, rule_of
from ullage.clock.given_work import GivenWork, KernelLaunch
from ullage.facts.families.architecture import read_model
from ullage.facts.families.config import Config
from ullage.facts.gpus import Gpu
from ullage.ground.errors import SpecError
from ullage.players.eager.serving.model_weights import FORMATS, find_format
from ullage.players.eager.time.serving import expert_seconds

_RULES: Final = (Rule.EXPERTS, Rule.GROUPED)
# vLLM's names of formats that a command may ask for, by parts of them.
_ASKED: Final = {"fp8": "fp8", "mxfp4": "mxfp4", "fp4": "nvfp4", "awq": "int4", "gptq": "int4"}


class ExpertTimes:
    """The seconds of the experts' products on one rank.

    Assumes: each expert is as likely to be chosen as another; the report says so.

    Attributes:
        num_chosen: experts that a token chooses; 0: the model has none.
    """

    def __init__(
        self, gpu: Gpu, config: Config, ranks: int = 1, quantization: str | None = None
    ) -> None:
        model = read_model(config)
        self.num_chosen = model.top_experts
        self._launch_s = cache(lambda launch: cost_of(gpu, launch).duration.s)
        if self.num_chosen:
            form = _find_format(config, quantization)
            self.seconds = cache(lambda tokens: expert_seconds(gpu, model, form, ranks, tokens))

    def correct(self, seconds: float, works: Iterable[GivenWork], tokens: int) -> float:
        """The seconds of a step in which this many tokens choose, from those of a step where the
        clock took all experts.

        Args:
            works: what the device was given for the step.
        """
        if not self.num_chosen:
            return seconds
        launches = [work for work in works if _is_of_experts(work)]
        if not launches:
            return seconds
        taken_s = sum(self._launch_s(launch) for launch in launches)
        return max(0.0, seconds - taken_s) + self.seconds(tokens)


def _find_format(config: Config, quantization: str | None) -> str:
    """The format of the experts' weights: the checkpoint's, or what the engine calls it; 16 bits
    where neither is known.
    """
    try:
        form = find_format(config)
    except SpecError:
        form = "bf16"
    if FORMATS[form].bits < 16 or quantization is None:
        return form
    return next((name for part, name in _ASKED.items() if part in quantization), form)


def _is_of_experts(work: GivenWork) -> bool:
    return isinstance(work, KernelLaunch) and rule_of(work.name) in _RULES
