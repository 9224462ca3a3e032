"""vLLM's engine for a Llama of 1.2 billion random weights: profiles, makes its cache, generates."""

import argparse
import os
import tempfile

from made_up import served_llama
from vllm import LLM, SamplingParams

PROMPTS, NEW_TOKENS = 16, 4


def main() -> None:
    """Start, and continue prompts that do not fit into one step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--one-process", action="store_true")
    args = parser.parse_args()
    os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"  # it is built with a whole CUDA toolkit
    if args.one_process:  # else an engine that takes its time to leave is killed
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    config = served_llama()
    with tempfile.TemporaryDirectory() as directory:
        config.save_pretrained(directory)
        engine = LLM(
            directory,
            load_format="dummy",
            skip_tokenizer_init=True,
            enforce_eager=args.eager,
        )
        cache = engine.llm_engine.vllm_config.cache_config
        prompts = [{"prompt_token_ids": [1] * (500 + 200 * number)} for number in range(PROMPTS)]
        outputs = engine.generate(
            prompts, SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
        )
        made = sum(len(output.outputs[0].token_ids) for output in outputs)
        size = cache.num_gpu_blocks * cache.block_size
        print(f"room for {size:,} tokens in the KV cache, {made} of {PROMPTS * NEW_TOKENS} made")


if __name__ == "__main__":
    main()
