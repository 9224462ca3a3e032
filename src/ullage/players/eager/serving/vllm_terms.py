"""The parts of a GPU that vLLM serves on, in the order in which vLLM takes them.

    budget = Budget(gpu, share, before, after)
    budget.cache, budget.left, budget.refusal

vLLM divides gpu_memory_utilization of the whole GPU: weights, the trial step, what grew outside of
PyTorch, the graphs that it estimates, and the cache. The driver's context, NCCL and graphs without
an estimate come out of what it leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ullage.facts.families.layers import Encoder, Model
from ullage.ground.units import format_bytes
from ullage.players.eager.serving.engines.vllm_releases import Release, find_release
from ullage.players.eager.serving.model_weights import padding_bytes, zero_point_bytes
from ullage.players.eager.serving.serving_plan import ServingPlan
from ullage.players.eager.serving.vllm_memory import (
    Step,
    activations,
    batch_defaults,
    graphs,
    libraries,
    outside,
)
from ullage.players.eager.term import Term, exact, left_of

if TYPE_CHECKING:
    from ullage.facts.gpus.gpu import Entry


def make_step(plan: ServingPlan, gpu: Entry, release: Release) -> Step:
    """vLLM's trial step for a plan."""
    batched, seqs = batch_defaults(gpu, release, plan.context)
    return Step(
        tokens=plan.max_batched_tokens or batched,
        requests=plan.max_seqs or seqs,
        tensor_parallel=plan.tensor_parallel,
        release=release,
        is_compiled=plan.has_graphs,
        is_cached=plan.is_cached,
    )


@dataclass(frozen=True, slots=True)
class Budget:
    """A GPU divided by vLLM.

    Attributes:
        total_bytes: of the GPU.
        asked_bytes: gpu_memory_utilization of it.
        inside: what is taken of that before the cache.
        after: what the rest has to hold.
    """

    total_bytes: int
    asked_bytes: int
    inside: tuple[Term, ...]
    after: tuple[Term, ...]

    @property
    def cache(self) -> Term:
        """The bytes left for the cache; what overflows the rest is not there for it either."""
        term = left_of("KV cache", self.asked_bytes, self.inside, "the rest")
        return replace(term, bytes=term.bytes + min(0, self._rest.bytes))

    @property
    def _rest(self) -> Term:
        share = f"gpu_memory_utilization={self.asked_bytes / self.total_bytes:.3g}"
        rest = self.total_bytes - self.asked_bytes
        return left_of("left free", rest, self.after, "beyond the share", share)

    @property
    def left(self) -> Term:
        """The bytes that nothing uses."""
        rest = self._rest
        return replace(rest, bytes=max(0, rest.bytes), high_bytes=max(0, rest.high_bytes))

    @property
    def refusal(self) -> str:
        """Why vLLM may not start, whatever the cache; "": nothing speaks against it."""
        if self._rest.low_bytes >= 0:
            return ""
        names = " and ".join(term.name for term in self.after)
        can = "cannot" if self._rest.high_bytes < 0 else "may not"
        return (
            f"{names} {can} fit beside the share that vLLM asks for: "
            f"{format_bytes(self.total_bytes - self.asked_bytes)} are beyond it; take a lower "
            f"utilization"
        )


def divide(model: Model, plan: ServingPlan, gpu: Entry, weights: list[Term], step: Step) -> Budget:
    """Divides a GPU's memory into the parts before and after vLLM makes the cache."""
    release = step.release
    runner = release.runner_of(model)
    is_encoder = all(isinstance(layer, Encoder) for layer in model.layers)
    inside = [*weights, *_held_terms(model, plan, gpu)]
    inside += [activations(model, step, gpu), libraries(gpu, step, model.hidden)]
    after: list[Term] = []
    if not release.is_context_counted:
        ranks = 1 if release.is_nccl_counted else plan.tensor_parallel
        after.append(outside(gpu, ranks))
    if plan.has_graphs and not is_encoder:
        (inside if release.counts_graphs(runner) else after).append(graphs(model, step))
    asked = int(gpu.total_bytes * (plan.utilization or release.utilization))
    return Budget(gpu.total_bytes, asked, tuple(inside), tuple(after))


def _held_terms(model: Model, plan: ServingPlan, gpu: Entry) -> list[Term]:
    """The bytes that weights take beyond the checkpoint once vLLM's kernels have them."""
    terms = []
    likely, most = padding_bytes(model, plan.weights, plan.tensor_parallel, gpu.compute_capability)
    if most:
        terms.append(Term("padding of experts", likely, 0, most, "sizes that MXFP4 kernels take",
                          "vLLM 0.10 to 0.33, quantization/mxfp4.py"))  # fmt: skip
    extra = zero_point_bytes(model, plan.weights, plan.tensor_parallel)
    if extra:
        what = "as vLLM's kernels hold them"
        terms.append(exact("zero points", extra, what, "vLLM 0.28, on a GPU and on the phantom"))
    return terms


def first_start(model: Model, plan: ServingPlan) -> str:
    """A sentence about the start that is assumed to be the likely one; "": there is no choice."""
    if plan.gpu is None or plan.is_cached is not None:
        return ""
    step = make_step(plan, plan.gpu, find_release(plan.engine_version))
    first, later = (
        activations(model, replace(step, is_cached=is_cached), plan.gpu).bytes
        for is_cached in (False, True)
    )
    if first == later:
        return ""
    return (
        f"assumed: a first start, which times kernels on a copy of the embeddings; a later one, "
        f"with its compile cache, leaves {format_bytes(first - later)} more for the cache"
    )
