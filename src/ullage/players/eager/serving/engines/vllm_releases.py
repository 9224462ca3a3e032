"""How vLLM's releases divide the GPU's memory: what each counts before it makes the KV cache.

    release = find_release("0.10.2")        # None: the newest that was read
    release.utilization, release.runner_of(model), release.counts_graphs(Runner.FIRST)

Every release runs one step of max_num_batched_tokens and the sampler, and gives the cache what is
left of gpu_memory_utilization. They differ in what they measure of that step. None of it is
fitted: each field is what the release's source says.

Source: vLLM 0.6.0 to 0.33.0, worker/worker.py, v1/worker/gpu_worker.py, gpu_model_runner.py,
gpu/model_runner.py, v1/sample/ops/topk_topp_sampler.py, utils/mem_utils.py, config/vllm.py,
config/compilation.py, engine/arg_utils.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Final

from ullage.facts.families.layers import Model, Recurrent
from ullage.ground.errors import SpecError


class Runner(Enum):
    """The runner of a step: the engine of 0.x, the first one of V1, and its successor."""

    OLD_ENGINE = "V0"
    FIRST = "model runner V1"
    SECOND = "model runner V2"


class Served(Enum):
    """The models that the second runner takes by default."""

    NONE = "none"
    QWEN3 = "dense Qwen3"
    NAMED = "those of a list"
    DENSE = "dense models, and those of a list"
    ALL = "all"


_NAMED: Final = frozenset({"qwen3", "llama", "mistral", "deepseek_v2", "qwen2_moe", "granitemoe"})
_NAMED_EXPERTS: Final = frozenset({"deepseek_v2", "qwen2_moe", "granitemoe"})

SORTED: Final = 38
"""Bytes for each logit at the peak of a sampler that sorts: 16 bits, their 32-bit copy, and what
torch.sort takes for it: values, indices and its work, 32 bytes. The phantom's figure for torch 2.15
with 256 x 152,064 and 1,024 x 128,256 logits."""
FILTERED: Final = 14
"""In a sampler that filters in place: 16 bits, their 32-bit copy, probabilities and noise."""
PLAIN: Final = 6
"""In the second runner, whose trial step neither sorts nor filters: 16 bits, a 32-bit copy."""


@dataclass(frozen=True, slots=True)
class Release:
    """The rules by which a release counts; each holds until the next one of RELEASES.

    Attributes:
        since: the first release of which this is true.
        utilization: the default of gpu_memory_utilization.
        is_old_engine: V0 is the default engine.
        is_reserved_counted: the trial step's reserved memory is counted, not its allocated peak.
        is_context_counted: all that the device holds is counted, the driver's context too.
        is_nccl_counted: NCCL starts after the first reading, so that its memory is counted.
        is_all_counted: what is left on the device after the step is counted whole, so buffers that
            the runner keeps are.
        logit_bytes: bytes for each logit at the sampler's peak, in the first runner.
        has_optional_filter: where FlashInfer is installed, as in the published images, it filters.
        served_by_second: models that the second runner takes.
        has_graph_estimate: the first runner subtracts an estimate of the CUDA graphs.
        has_second_graph_estimate: and the second.
        benchmarks_fusions: a first start, without a compile cache, times fused kernels on random
            inputs, one of them the table of embeddings (combo_kernels of torch 2.9).
        has_full_graphs: graphs of whole decoding steps beside those of pieces.
        graph_step: steps between the sizes of graphs from 256 on.
        has_workspaces: a layer of experts has two workspaces, each as wide as a token, and so
            have sums over ranks that are fused with norms.
        has_large_batches: B200 and larger have batches of 16,384 tokens.
    """

    since: tuple[int, int]
    utilization: float = 0.9
    is_old_engine: bool = False
    is_reserved_counted: bool = False
    is_context_counted: bool = False
    is_nccl_counted: bool = False
    is_all_counted: bool = False
    logit_bytes: int = SORTED
    has_optional_filter: bool = False
    served_by_second: Served = Served.NONE
    has_graph_estimate: bool = False
    has_second_graph_estimate: bool = False
    benchmarks_fusions: bool = False
    has_full_graphs: bool = False
    graph_step: int = 8
    has_workspaces: bool = False
    has_large_batches: bool = False

    @property
    def name(self) -> str:
        """The version as people write it."""
        return ".".join(map(str, self.since))

    def runner_of(self, model: Model) -> Runner:
        """The runner of a model in this release where nothing else is asked for."""
        if self.is_old_engine:
            return Runner.OLD_ENGINE
        is_dense = not model.top_experts
        is_hybrid = any(isinstance(layer, Recurrent) for layer in model.layers)
        is_second = {
            Served.NONE: False,
            Served.QWEN3: model.model_type == "qwen3",
            Served.NAMED: model.model_type in _NAMED,
            Served.DENSE: (is_dense and not is_hybrid) or model.model_type in _NAMED_EXPERTS,
            Served.ALL: True,
        }[self.served_by_second]
        return Runner.SECOND if is_second else Runner.FIRST

    def counts_graphs(self, runner: Runner) -> bool:
        """True if CUDA graphs are subtracted before the cache is made; else they come after it."""
        if runner is Runner.SECOND:
            return self.has_second_graph_estimate
        return runner is Runner.FIRST and self.has_graph_estimate


def _releases() -> tuple[Release, ...]:
    old = Release((0, 6), is_old_engine=True, is_reserved_counted=True, is_nccl_counted=True)
    steps: tuple[tuple[tuple[int, int], dict[str, object]], ...] = (
        ((0, 7), {"is_reserved_counted": False}),
        ((0, 8), {"is_old_engine": False, "is_context_counted": True, "has_optional_filter": True}),
        ((0, 9), {"is_context_counted": False}),
        ((0, 11), {"is_nccl_counted": False, "has_full_graphs": True, "graph_step": 16,
                   "benchmarks_fusions": True}),
        ((0, 12), {"has_optional_filter": False}),
        ((0, 17), {"logit_bytes": FILTERED}),
        ((0, 19), {"has_workspaces": True}),
        ((0, 20), {"utilization": 0.92, "has_graph_estimate": True}),
        ((0, 22), {"served_by_second": Served.QWEN3}),
        ((0, 24), {"served_by_second": Served.NAMED}),
        ((0, 25), {"served_by_second": Served.DENSE}),
        ((0, 27), {"is_all_counted": True}),
        ((0, 28), {"has_large_batches": True}),
        ((0, 29), {"served_by_second": Served.ALL, "has_second_graph_estimate": True}),
    )  # fmt: skip
    releases = [old]
    for since, changes in steps:
        releases.append(replace(releases[-1], since=since, **changes))  # type: ignore[arg-type]
    return tuple(releases)


RELEASES: Final = _releases()
"""Oldest first."""
NEWEST: Final = (0, 33)
"""The newest release whose source was read."""


def parse_version(version: str) -> tuple[int, int]:
    """The first two numbers of a version such as "0.10.2".

    Raises:
        SpecError: it is not a version.
    """
    parts = version.removeprefix("v").split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        raise SpecError(f"engine_version={version!r} is not a version; write one such as 0.32.0")
    return int(parts[0]), int(parts[1])


def find_release(version: str | None) -> Release:
    """Finds the rules of a version of vLLM; None: the newest.

    Raises:
        SpecError: it is not a version, or older than those that were read.
    """
    if version is None:
        return RELEASES[-1]
    number = parse_version(version)
    if number < RELEASES[0].since:
        raise SpecError(
            f"engine_version={version!r}: vLLM's memory is known from {RELEASES[0].name} on"
        )
    for release, following in pairwise(RELEASES):
        if number < following.since:
            return release
    return RELEASES[-1]
