"""Starts vLLM's engine as `vllm serve` does, with random weights, and prints its log.

ullage run --gpu l40s --python VENV/bin/python -- start_log.py serve MODEL --max-model-len 8192
"""

import os
import sys

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_NO_USAGE_STATS="1",
    # These are built with a whole CUDA toolkit.
    VLLM_USE_FLASHINFER_SAMPLER="0",
    VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER="0",
    VLLM_USE_DEEP_GEMM="0",
    HF_HUB_OFFLINE="1",
)
import vllm
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.serve.utils.api_utils import log_non_default_args, log_version_and_model
from vllm.logger import init_logger
from vllm.model_executor.models import registry
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.llm_engine import LLMEngine

from ullage.operate.serve.vllm.engine_core import become_a_rank


def main() -> None:
    """Ends once the engine is ready."""
    # vLLM would inspect the model in a process of its own, which imports everything again.
    registry._run_in_subprocess = lambda look: look()
    parser = make_arg_parser(FlexibleArgumentParser())
    words = parser.parse_args(sys.argv[2:])
    words.model = words.model_tag or words.model
    arguments = AsyncEngineArgs.from_cli_args(words)
    arguments.load_format, arguments.skip_tokenizer_init = "dummy", True
    if arguments.tensor_parallel_size > 1:
        become_a_rank(arguments)
    context = UsageContext.OPENAI_API_SERVER
    config = arguments.create_engine_config(context)
    # Its logging is set up by now, as that of `vllm serve` is before.
    logger = init_logger("vllm.entrypoints.openai.api_server")
    log_version_and_model(logger, vllm.__version__, words.model)
    log_non_default_args(words)
    from vllm.v1.executor.abstract import Executor

    LLMEngine(config, Executor.get_class(config), log_stats=True, usage_context=context)
    print("INFO:     Application startup complete.", file=sys.stderr, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
