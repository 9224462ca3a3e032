"""The private names of torch that ullage uses, in one table.

A private name may change with any version of torch. For each one the table says where it is, what
ullage loses without it, and which versions have it. Code that has another way, or does without,
looks a name up with `find` and gets None where it is missing; `explain_missing` is the sentence
that says so to the user. Names without a version are in every version that ullage supports, and the
code uses them unchanged.

    observe = find(torch, "torch._C._cuda_attach_out_of_memory_observer")

Standard library alone: this runs in the user's interpreter. A test compares the table with the
source, and a nightly test compares it with the torch of an environment.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple


class Internal(NamedTuple):
    """A private name of torch.

    Attributes:
        path: from `torch` on. An attribute of an object has the path of the object's class; what
            torch puts on functions has that of the module that does.
        loss: what is lost without it, as the end of the sentence "torch has no NAME: ...".
        since: the first version of torch that has it, of those that `benchmarks.versions` tries;
            None: all of them.
        until: the first of these versions that no longer has it; None: there is none.
        is_optional: whether ullage runs without it.
    """

    path: str
    loss: str
    since: str | None = None
    until: str | None = None
    is_optional: bool = False


def _list(owner: str, names: str, loss: str, *, is_optional: bool = False) -> list[Internal]:
    """Names of one owner, as "name" or "name>=2.9" for one that 2.9 brought, or "name<2.14"."""
    internals = []
    for word in names.split():
        name, _, since = word.partition(">=")
        name, _, until = name.partition("<")
        internals.append(
            Internal(
                f"{owner}.{name}",
                loss,
                since or None,
                until or None,
                is_optional or bool(since or until),
            )
        )
    return internals


_KEYS = "small values cannot be followed: masks, counts and flags that kernels make read as zeros"
_DISPATCH = "operations cannot be watched one by one"
_HISTORY = "the snapshot has no memory history"
_RANKS = "one rank cannot run without its peers"
_COMPILER = "compiled programs cannot be watched"
_TIMING = "what a warm cache of the compiler's would have saved is not known"
_MODULES = "a module's calls and state cannot be copied faithfully"
_OPERATION = "the operation has no rule of its own"

INTERNALS: tuple[Internal, ...] = (
    # Memory and devices.
    *_list("torch._C", "_cuda_record_memory_history _cuda_memorySnapshot", _HISTORY),
    *_list("torch._C", "_cuda_record_memory_history_legacy _cuda_isHistoryEnabled", _HISTORY),
    *_list("torch.cuda.memory", "_record_memory_history _snapshot", _HISTORY),
    *_list("torch._C", "_cuda_memoryStats", "the allocator's peaks and counts are not known"),
    *_list(
        "torch._C",
        "_cuda_resetPeakMemoryStats _cuda_resetAccumulatedMemoryStats",
        "a program that resets its statistics loses the peaks before",
        is_optional=True,
    ),
    *_list(
        "torch._C",
        "_cuda_attach_out_of_memory_observer",
        "a caught out-of-memory error is not reported",
        is_optional=True,
    ),
    *_list(
        "torch._C",
        "_cuda_clearCublasWorkspaces",
        "a test may be charged for the workspaces of an earlier one",
        is_optional=True,
    ),
    *_list(
        "torch._C",
        "_cuda_cudaCachingAllocator_raw_alloc _cuda_cudaCachingAllocator_raw_delete",
        "allocator settings cannot be tried without running the program",
    ),
    *_list("torch.cuda", "_lazy_call", "watching cannot begin when CUDA is initialised"),
    *_list("torch.cuda", "_is_in_bad_fork", "a forked test is taken for its parent"),
    *_list("torch.UntypedStorage", "_cdata", "two tensors of one storage are not recognised"),
    *_list("torch.UntypedStorage", "_new_with_weak_ptr", "put-off initialisation cannot be done"),
    *_list("torch.UntypedStorage", "_share_cuda_", "sharing between processes is not noticed"),
    *_list("torch._C", "TensorBase", "the storage of a tensor subclass cannot be read"),
    *_list("torch.Tensor", "_version", "a change in place cannot be noticed"),
    *_list("torch.Tensor", "_is_view", "a view cannot be distinguished from its base"),
    *_list("torch.Tensor", "_make_wrapper_subclass", "tensors made of others are not watched"),
    # The dispatcher.
    *_list("torch._C", "_dispatch_tls_set_dispatch_key_included", _KEYS, is_optional=True),
    *_list(
        "torch._C", "_dispatch_key_parse _dispatch_has_kernel _dispatch_keyset_full_after", _KEYS
    ),
    *_list(
        "torch._C._autograd",
        "_enable_record_function _profiler_enabled",
        "a profile of the program shows operations of ullage's",
        is_optional=True,
    ),
    *_list("torch._ops", "_compute_keyset OpOverloadPacket", _KEYS),
    *_list(
        "torch._C",
        "_dispatch_has_kernel_for_dispatch_key _dispatch_get_all_op_names "
        "_dispatch_get_registrations_for_dispatch_key _dispatch_tls_is_dispatch_key_excluded "
        "_dispatch_tls_is_dispatch_key_included "
        "_len_torch_dispatch_stack DispatchKey _SetExcludeDispatchKeyGuard _DisableTorchDispatch "
        "DisableTorchFunction DisableTorchFunctionSubclass",
        _DISPATCH,
    ),
    *_list("torch._C._functorch", "is_functorch_wrapped_tensor", _DISPATCH),
    *_list("torch._functorch", "pyfunctorch", _DISPATCH),
    *_list("torch", "_is_functional_tensor", _DISPATCH),
    *_list("torch.utils._python_dispatch", "TorchDispatchMode _disable_current_modes", _DISPATCH),
    *_list("torch._ops.OpOverload", "_schema", _DISPATCH),
    *_list("torch._ops.OpOverloadPacket", "_qualified_op_name", _DISPATCH),
    *_list("torch._subclasses.fake_tensor", "FakeTensorMode", "shapes cannot be tried out"),
    # Operations.
    *_list(
        "torch.ops.aten",
        "_to_copy _local_scalar_dense _index_put_impl_ _unique2 _pin_memory _softmax _log_softmax "
        "_sample_dirichlet _amp_foreach_non_finite_check_and_unscale _foreach_add _foreach_copy "
        "_foreach_mul _foreach_norm _foreach_zero _reshape_alias _unsafe_view _conj_physical "
        "_unique _prelu_kernel _fused_rms_norm>=2.8 _scaled_mm _grouped_mm>=2.8 "
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention",
        _OPERATION,
    ),
    *_list("torch.Tensor", "_indices", "a sparse tensor's places are not known"),
    *_list("torch", "_scaled_mm", "the rate of FP8 products cannot be measured"),
    *_list("torch", "_foreach_norm", "gradients' norms are taken one by one"),
    *_list("torch.ops", "_c10d_functional", "functional collectives are not recognised"),
    # Modules and optimizers.
    *_list(
        "torch.nn.Module",
        "_modules _parameters _buffers _non_persistent_buffers_set _call_impl _wrapped_call_impl "
        "_forward_hooks _forward_hooks_always_called _forward_hooks_with_kwargs "
        "_forward_pre_hooks _forward_pre_hooks_with_kwargs _backward_hooks "
        "_state_dict_pre_hooks _load_state_dict_pre_hooks _load_state_dict_post_hooks",
        _MODULES,
    ),
    *_list("torch.nn.Module", "_is_replica", "DataParallel's replicas are taken for modules"),
    *_list("torch.nn.parallel.replicate", "_former_parameters", "replicas' weights have no owner"),
    *_list(
        "torch.nn.modules.module",
        "_global_forward_hooks _global_forward_pre_hooks _global_backward_hooks "
        "_global_forward_hooks_with_kwargs",
        _MODULES,
    ),
    *_list(
        "torch.nn.modules.module",
        "_has_any_global_hook>=2.8",
        "torch.compile warns of hooks that are not the program's",
    ),
    *_list("torch.nn.modules.conv", "_ConvNd", "experts with convolutions are not recognised"),
    *_list(
        "torch.nn.utils.clip_grad",
        "_get_total_norm _group_tensors_by_device_and_dtype",
        "gradient clipping cannot be followed",
        is_optional=True,
    ),
    *_list("torch.optim.Optimizer", "_optimizer_step_pre_hooks", "hooks of a step are not run"),
    *_list("torch.optim.SGD", "_need_device_dtype_check_for_fused", "an undone plan leaves a note"),
    *_list(
        "torch.amp.grad_scaler.GradScaler",
        "_maybe_opt_step",
        "steps that a gradient scaler skips are not counted",
        is_optional=True,
    ),
    *_list(
        "torch.optim.lr_scheduler",
        "_opt_called _wrapped_by_lr_sched",
        "a scheduler warns of an order of calls that is right",
    ),
    *_list(
        "torch.utils.data.dataloader",
        "_BaseDataLoaderIter",
        "the program's waits for its batches are not known",
        is_optional=True,
    ),
    *_list(
        "torch.utils.data.dataloader._BaseDataLoaderIter",
        "_num_workers",
        "a loader with worker processes is taken for one without",
        is_optional=True,
    ),
    # Autograd.
    *_list(
        "torch.autograd",
        "_engine_run_backward",
        "the begin and end of backward are not known",
        is_optional=True,
    ),
    *_list(
        "torch.autograd.Variable",
        "_execution_engine",
        "a plan cannot be replayed with real numbers",
    ),
    *_list(
        "torch._C._functions.AccumulateGrad",
        "_sequence_nr",
        "what backward allocates has no module",
        is_optional=True,
    ),
    *_list(
        "torch._C._autograd",
        "_top_saved_tensors_default_hooks>=2.8",
        "parameter offload cannot see hooks around a block",
    ),
    *_list("torch._C._nn", "_parse_to", "moves of modules cannot be put off"),
    # The compiler.
    *_list("torch", "_dynamo _inductor _compile", _COMPILER),
    *_list("torch._dynamo", "config", _COMPILER),
    *_list("torch._dynamo.eval_frame", "_TorchDynamoContext", _COMPILER),
    *_list("torch._dynamo.eval_frame", "_stance", _COMPILER, is_optional=True),
    *_list("torch._dynamo.eval_frame.OptimizedModule", "_orig_mod", _COMPILER),
    *_list(
        "torch._dynamo.eval_frame",
        "_lazy_forward _torchdynamo_inline _torchdynamo_orig_callable _torchdynamo_disable "
        "_torchdynamo_wrapper_id>=2.11",
        _COMPILER,
    ),
    *_list("torch._dynamo", "aot_compile>=2.9", "what is compiled ahead is not watched"),
    *_list("torch._inductor", "select_algorithm", "all candidate kernels are compiled"),
    *_list("torch._inductor.runtime", "triton_heuristics", _TIMING, is_optional=True),
    *_list("torch._inductor.fx_passes", "pad_mm", _TIMING, is_optional=True),
    *_list(
        "torch._inductor.codecache.FxGraphCache",
        "_save_graph _get_tmp_dir",
        "graphs that hold a choice by timing are kept for the next run",
        is_optional=True,
    ),
    *_list(
        "torch._functorch._aot_autograd.autograd_cache.AOTAutogradCache",
        "_get_tmp_dir",
        "a program cannot clear its cache of graphs",
        is_optional=True,
    ),
    *_list(
        "torch._C._dynamo.eval_frame",
        "skip_code<2.8",
        "the compiler traces what ullage puts around a call",
    ),
    # Several ranks.
    *_list(
        "torch._C._distributed_c10d",
        "FakeProcessGroup ProcessGroup ProcessGroupGloo ReduceOp ProcessGroupNCCL2>=2.15",
        _RANKS,
    ),
    *_list(
        "torch._C._distributed_c10d.FakeProcessGroup",
        "Options _create_internal>=2.11 options>=2.9",
        _RANKS,
    ),
    *_list(
        "torch._C._distributed_c10d.FakeProcessGroup.Options",
        "simulate_uniform_ranks>=2.15",
        "collectives of a rank without peers are finished by ullage",
    ),
    *_list(
        "torch._C._distributed_c10d.ProcessGroupGloo",
        "_set_default_timeout _set_sequence_number_for_group",
        _RANKS,
    ),
    *_list(
        "torch.distributed.distributed_c10d",
        "_get_object_coll_device _object_to_tensor _pg_group_ranks _rank_not_in_group "
        "_tensor_to_object _world",
        _RANKS,
    ),
    *_list("torch.distributed.distributed_c10d._World", "pg_map", _RANKS),
    *_list(
        "torch.distributed",
        "_functional_collectives",
        "a collective's result may be read before it is there",
        is_optional=True,
    ),
    *_list("torch.testing._internal.distributed.fake_pg", "FakeStore", _RANKS),
    *_list(
        "torch.distributed.fsdp._fully_shard",
        "_fsdp_common _fsdp_param _fsdp_param_group",
        "FSDP2's whole parameters have no owner",
        is_optional=True,
    ),
    *_list(
        "torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam",
        "_unsharded_param",
        "FSDP2's whole parameters have no owner",
        is_optional=True,
    ),
    *_list(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup",
        "_all_gather_result",
        "FSDP2's gathered buffers have no owner",
        is_optional=True,
    ),
    *_list(
        "torch.distributed.fsdp._common_utils",
        "_fsdp_wrapped_module",
        "modules' names have FSDP's prefixes",
    ),
    *_list(
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
        "_checkpoint_wrapped_module",
        "modules' names have the wrapper's prefixes",
    ),
    *_list("torch.distributed.tensor.DTensor", "_local_tensor", "a DTensor's part has no owner"),
)

# A run goes on without these, and says so.
_WATCHED = (
    "torch._C._cuda_attach_out_of_memory_observer",
    "torch._C._cuda_resetPeakMemoryStats",
    "torch._C._cuda_resetAccumulatedMemoryStats",
    "torch.autograd._engine_run_backward",
)
_BY_PATH = {internal.path: internal for internal in INTERNALS}


def find(torch: ModuleType, path: str) -> Any:
    """The object that stands under a path of the table; None: this torch does not have it.

    Raises:
        KeyError: the path is not in the table.
    """
    value: Any = torch
    for name in _BY_PATH[path].path.split(".")[1:]:
        value = getattr(value, name, None)
    return value


def explain_missing(torch: ModuleType, path: str) -> str:
    """One sentence for the user: what this torch does not have, and what is lost by that."""
    return f"torch {torch.__version__} has no {path}: {_BY_PATH[path].loss}"


def list_losses(torch: ModuleType) -> list[str]:
    """Lists what watching loses because this torch lacks a name that every version tried has."""
    missing = (path for path in _WATCHED if find(torch, path) is None)
    return [explain_missing(torch, path) for path in missing]
