"""SGLang's engine for a Llama of 1.2 billion random weights: makes its cache, generates."""

import argparse
import os
import signal
import tempfile

import sglang
from made_up import served_llama

PROMPTS, NEW_TOKENS = 4, 16


def main() -> None:
    """Start, and continue a few prompts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--eager", action="store_true")
    args = parser.parse_args()
    # The other build of this kernel has CUDA's runtime built in.
    os.environ["FLASHINFER_USE_CUDA_NORM"] = "1"
    config = served_llama()
    with tempfile.TemporaryDirectory() as directory:
        config.save_pretrained(directory)
        engine = sglang.Engine(
            model_path=directory,
            load_format="dummy",
            skip_tokenizer_init=True,
            disable_cuda_graph=args.eager,
            log_level="info",
        )
        prompts = [[1] * (500 + 200 * number) for number in range(PROMPTS)]
        outputs = engine.generate(
            input_ids=prompts,
            sampling_params={"max_new_tokens": NEW_TOKENS, "ignore_eos": True},
        )
        made = sum(len(output["output_ids"]) for output in outputs)
        size = engine.get_server_info()["max_total_num_tokens"]
        print(f"room for {size:,} tokens in the KV cache, {made} of {PROMPTS * NEW_TOKENS} made")
        # As a server that is stopped: shutdown() kills the process that holds the memory.
        engine.loop.call_soon(signal.raise_signal, signal.SIGTERM)
        engine.loop.run_forever()


if __name__ == "__main__":
    main()
