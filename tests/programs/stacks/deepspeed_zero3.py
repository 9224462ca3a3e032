"""DeepSpeed ZeRO-3 of a Hugging Face Llama; started by torchrun or deepspeed."""

import argparse

import deepspeed
import torch
from made_up import Tokens, small_llama
from transformers import LlamaForCausalLM

STEPS = 3


def main() -> None:
    """Three steps; --offload keeps the optimizer on the CPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--offload", action="store_true")
    args = parser.parse_args()
    zero = {"stage": 3}
    if args.offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    model = LlamaForCausalLM(small_llama())
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": not args.offload}},
            "zero_optimization": zero,
        },
    )
    for batch in Tokens(4 * STEPS, 512).tokens.split(4):
        ids = batch.to(engine.device)
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
    print(f"peak {torch.cuda.max_memory_allocated():,} bytes")


if __name__ == "__main__":
    main()
