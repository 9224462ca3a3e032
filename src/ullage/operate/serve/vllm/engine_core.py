"""vLLM's engine core in this process, started as `vllm serve` starts it, with dummy weights.

engine = Engine(["MODEL", "--max-model-len", "8192"])
engine.add("first", prompt, 200)
outputs = engine.step()
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ullage.facts.gpus import Gpu
from ullage.operate.serve.clock import Clock, Mark, Works, launches_between, seconds_between
from ullage.operate.serve.prompts import make_tokens
from ullage.operate.serve.step_times import Launches, StepTimes, step_sizes
from ullage.operate.serve.vllm.executor import Theirs, make_executor
from ullage.operate.serve.vllm.offloading import Transfers, check_connector, copy_times
from ullage.operate.serve.vllm.step_parts import StepParts

# The scales of a cache in float8, which dummy weights must not stand for.

_NAMES: Final = ("q_scale", "k_scale", "v_scale", "prob_scale")
_MISSING: Final = -1.0
"""The value that vLLM gives a scale that no checkpoint has."""


def leave_to_defaults() -> None:
    """Has vLLM find no scales where it looks for them after loading."""
    import torch
    from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod

    look = BaseKVCacheMethod.process_weights_after_loading

    def look_without_scales(self: Theirs, layer: Theirs) -> None:
        for name in _NAMES:
            if hasattr(layer, name):
                scale = torch.tensor(_MISSING, device="cpu")
                setattr(layer, name, torch.nn.Parameter(scale, requires_grad=False))
        look(self, layer)

    BaseKVCacheMethod.process_weights_after_loading = look_without_scales


_PROMPT_TOKENS: Final = 16
_ENDLESS: Final = 64
# Steps of each size that are measured; the median counts.
_NUM_STEPS: Final = 3


class Engine:
    """The engine, and how requests get into it.

    Attributes:
        ignored: words of the command that are of the HTTP server, or that vLLM does not know.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        from tqdm import tqdm
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.model_executor.models import registry
        from vllm.usage.usage_lib import UsageContext
        from vllm.utils.argparse_utils import FlexibleArgumentParser
        from vllm.v1.engine.llm_engine import LLMEngine
        from vllm.v1.executor.abstract import Executor

        # The thread behind progress bars asks the phantom's clock for the time, and so moves it.
        tqdm.monitor_interval = 0
        # vLLM would inspect the model in a process of its own, which imports everything again.
        registry._run_in_subprocess = lambda look: look()
        leave_to_defaults()
        parser = FlexibleArgumentParser()
        parser.add_argument("model_tag", nargs="?")
        AsyncEngineArgs.add_cli_args(parser)
        parsed, self.ignored = parser.parse_known_args(list(arguments))
        parsed.model = parsed.model_tag or parsed.model
        theirs = AsyncEngineArgs.from_cli_args(parsed)
        theirs.load_format, theirs.skip_tokenizer_init = "dummy", True
        if theirs.tensor_parallel_size > 1:
            become_a_rank(theirs)
        context = UsageContext.OPENAI_API_SERVER
        self.config = theirs.create_engine_config(context)
        check_connector(self.config)
        kind = make_executor(Executor.get_class(self.config))
        engine = LLMEngine(self.config, kind, log_stats=True, usage_context=context)
        self._engine = engine  # which shuts its workers down when it is collected
        self.core = engine.engine_core.engine_core
        self.executor, self.scheduler = self.core.model_executor, self.core.scheduler
        self.executor.scheduler = self.scheduler
        self._inputs, self._tasks = engine.input_processor, engine.get_supported_tasks()

    def add(self, name: str, prompt: list[int], output: int) -> None:
        """Adds a request.

        Raises:
            ValueError: the engine refuses it, as the server would.
        """
        import vllm.exceptions
        from vllm import SamplingParams

        longest = self.config.model_config.max_model_len
        if len(prompt) + output > longest:  # as vLLM's server answers, before its engine
            raise ValueError(
                f"a prompt of {len(prompt)} tokens and {output} more are beyond max_model_len, "
                f"{longest}"
            )
        sampling = SamplingParams(max_tokens=output, ignore_eos=True, detokenize=False)
        try:
            request = self._inputs.process_inputs(
                name, {"prompt_token_ids": prompt}, sampling, self._tasks
            )
        except getattr(vllm.exceptions, "VLLMClientError", ValueError) as error:
            raise ValueError(str(error)) from None
        request.external_req_id = name
        self.core.add_request(*self.core.preprocess_add_request(request))

    def step(self) -> list[Theirs]:
        """One turn of the engine's loop; the outputs of requests that got tokens."""
        outputs, was_executed = self.core.step_fn()
        self.core.post_step(was_executed)
        return [each for row in (outputs or {}).values() for each in row.outputs]

    @property
    def has_work(self) -> bool:
        """True if a request is in it, or a step whose tokens nobody has seen."""
        return bool(self.scheduler.has_requests() or self.core.batch_queue)

    def abort(self) -> None:
        """Takes all requests out, and waits for the steps that were given."""
        self.core.abort_requests(list(self.scheduler.requests))
        while self.has_work:
            if self.executor.by_time is not None:
                self.executor.by_time.wait_for_copies()
            self.step()

    def transfers(self, gpu: Gpu) -> Transfers | None:
        """The copies to the host and back; None: nothing is offloaded."""
        if self.scheduler.connector is None:
            return None
        return Transfers(self.describe()["block_bytes"], copy_times(gpu))

    def prompt_of(self, number: int, tokens: int) -> list[int]:
        """A prompt like that of no other number, from its fourth token on."""
        return make_tokens(number, tokens, self.config.model_config.get_vocab_size())

    def describe(self) -> dict[str, Any]:
        """Describes what the engine printed when it started, and where the memory went."""
        import torch
        import vllm

        config, worker = self.config, self.executor.driver_worker.worker
        cache = config.cache_config
        free, total = torch.cuda.mem_get_info()
        weights_bytes = int(worker.model_runner.model_memory_usage)
        held_bytes = _held_bytes(worker.model_runner.kv_caches)
        # With --kv-cache-memory-bytes vLLM measures neither.
        size = getattr(worker, "available_kv_cache_memory_bytes", held_bytes)
        beside_bytes = torch.cuda.max_memory_allocated() - weights_bytes - held_bytes
        peak_bytes = getattr(worker, "peak_activation_memory", max(0, beside_bytes))
        return {
            "name": "vllm",
            "version": vllm.__version__,
            "weights_bytes": weights_bytes,
            "peak_activation_bytes": int(peak_bytes),
            "kv_cache_bytes": int(size),
            "num_blocks": int(cache.num_gpu_blocks),
            "block_tokens": int(cache.block_size),
            "kv_cache_tokens": int(cache.kv_cache_size_tokens),
            "max_concurrency": float(cache.kv_cache_max_concurrency),
            "device_used_bytes": int(total - free),
            "device_bytes": int(total),
            "utilization_frac": float(cache.gpu_memory_utilization),
            "max_model_len": int(config.model_config.max_model_len),
            **_limits(config.scheduler_config),
            "has_prefix_caching": bool(cache.enable_prefix_caching),
            "has_graphs": not config.model_config.enforce_eager,
            "tensor_parallel": int(config.parallel_config.tensor_parallel_size),
            "ignored": list(self.ignored),
            "block_bytes": held_bytes // int(cache.num_gpu_blocks),
            "is_cache_given": bool(cache.kv_cache_memory_bytes),
            "graph_spread_bytes": _graph_spread(worker),
            "hidden": int(config.model_config.get_hidden_size()),
        }


def _limits(limits: Theirs) -> dict[str, Any]:
    return {
        "max_num_seqs": int(limits.max_num_seqs),
        "max_num_batched_tokens": int(limits.max_num_batched_tokens),
        "is_async": bool(limits.async_scheduling),
    }


def _graph_spread(worker: Theirs) -> int:
    """The spread of the CUDA graphs' estimate that vLLM took off its cache: the phantom's upper
    bound less its lower one.
    """
    import vllm.envs

    from ullage.players.inside.library import outside

    if not getattr(vllm.envs, "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", False):
        return 0
    spread = sum(each.size_bytes for each in outside(0) if each.what.startswith("CUDA graphs"))
    return min(spread, int(getattr(worker, "cudagraph_memory_estimate", 0)))


def _held_bytes(caches: Theirs) -> int:
    """The bytes of all layers' caches, which may share one allocation; a layer may have several."""
    sizes: dict[int, int] = {}
    rows = [*caches]
    for row in rows:
        if isinstance(row, list | tuple):
            rows += row
        else:
            storage = row.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def become_a_rank(arguments: Theirs) -> None:
    """This process is one rank of its job, the first; the others are not there.

    They would be asked whether they share a machine with it, which they do, for a queue of
    messages, which a launcher's ranks do not use, and for the buffers of vLLM's own all-reduce. So
    NCCL's is used, which takes a little longer.
    """
    import torch
    from vllm.distributed import parallel_state
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

    def all_of(group: Theirs, source_rank: int = 0) -> list[bool]:
        return [True] * torch.distributed.get_world_size(group)

    arguments.distributed_executor_backend = "external_launcher"
    arguments.disable_custom_all_reduce = True
    parallel_state.in_the_same_node_as = all_of
    MessageQueue.create_from_process_group = staticmethod(lambda *_, **__: None)


def measure_steps(engine: Engine, clock: Clock, parts: StepParts) -> StepTimes:
    """Runs steps of many sizes on the phantom; what they take but for their attention.

    The clock knows no lengths of keys in pages: of attention only a kernel's start, some 3 us a
    layer, is left. It counts the weights of all experts; those that a step's tokens choose are
    counted instead.
    """
    meter = _Meter(clock, Works(), parts)
    limits, cache = engine.config.scheduler_config, engine.config.cache_config
    decode, prefill, decode_launches, prefill_launches = {}, {}, {}, {}
    _steady_s(engine, meter, 2)  # kernels are compiled, and tables are made
    budget = limits.max_num_batched_tokens
    for size in step_sizes(min(limits.max_num_seqs, budget, cache.num_gpu_blocks // 4)):
        decode[size], decode_launches[size] = _steady_s(engine, meter, size)
    longest = engine.config.model_config.max_model_len - 2
    for size in step_sizes(min(budget, longest)):
        if size < 2:
            continue
        # The first step of a size may compile kernels.
        _prompt_s(engine, meter, size, 0)
        prefill[size], prefill_launches[size] = _prompt_s(engine, meter, size, 1)
    return StepTimes.of(decode, prefill, decode_launches, prefill_launches)


def prompt_tokens(size: int, budget: int) -> int:
    """The length of the prompts of so many requests that are to get a token in one step, which has
    at most `budget` tokens: where they nearly fill it, long prompts would come in one by one, and
    the first requests end before the last begin.
    """
    return _PROMPT_TOKENS if 2 * size <= budget else 1


class _Meter(NamedTuple):
    clock: Clock
    works: Works
    parts: StepParts

    def seconds(self, first: Mark, second: Mark, tokens: int) -> float:
        """Between two moments, in which a step had this many tokens."""
        works = self.works.between(first, second)
        return self.parts.correct(seconds_between(first, second), works, tokens)


def _steady_s(engine: Engine, meter: _Meter, size: int) -> tuple[float, Launches]:
    """Seconds, and pieces of work, from one step to the next where this many requests get a token
    in each.
    """
    tokens = prompt_tokens(size, engine.config.scheduler_config.max_num_batched_tokens)
    for number in range(size):
        prompt = engine.prompt_of(size * 1_000_003 + number, tokens)
        engine.add(f"decode-{size}-{number}", prompt, _ENDLESS)
    ends: list[Theirs] = []
    while len(ends) <= _NUM_STEPS:
        if not engine.has_work:
            raise RuntimeError(f"{size} requests never got a token in the same step")
        if sum(bool(each.new_token_ids) for each in engine.step()) == size:
            ends.append(meter.clock.mark())
    engine.abort()
    pairs = [*itertools.pairwise(ends)]
    return (
        min(meter.seconds(before, after, size) for before, after in pairs),
        min(launches_between(before, after) for before, after in pairs),
    )


def _prompt_s(engine: Engine, meter: _Meter, tokens: int, turn: int) -> tuple[float, Launches]:
    """Seconds, and pieces of work, of a step with one prompt, from an idle device."""
    prompt = engine.prompt_of(tokens * 1_000_003 + turn, tokens)
    begin = meter.clock.mark()
    engine.add(f"prompt-{tokens}-{turn}", prompt, 1)
    while engine.has_work:
        engine.step()
    end = meter.clock.mark()
    return meter.seconds(begin, end, tokens), launches_between(begin, end)
