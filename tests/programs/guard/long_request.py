"""Answers requests to a Llama of transformers on a GPU where the cache of a long one does not fit.

long_request.py SOURCE_OF_ULLAGE

The last line is a document: how each request ended, what was allocated before and after it, and
what the guard said.
"""

import contextlib
import gc
import io
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, sys.argv[1])
import ullage

SIZES = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 6, "vocab_size": 512,
         "num_attention_heads": 4, "num_key_value_heads": 4}  # fmt: skip
SHORT, LONG, TOO_LONG = (1, 64), (8, 4096), (8, 32768)
NEW = 2
LIMIT_BYTES, BESIDE_BYTES = 290 << 20, 64 << 20


def main():
    """Answers, and prints."""
    torch.cuda.set_per_process_memory_fraction(LIMIT_BYTES / torch.cuda.mem_get_info()[1])
    config = LlamaConfig(**SIZES, max_position_embeddings=65536, eos_token_id=None)
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()

    has_begun, has_failed = threading.Event(), threading.Event()

    def generate(*request, **keywords):
        try:
            return model.generate(*request, **keywords)
        except torch.OutOfMemoryError:
            if "cache_implementation" in keywords and has_begun.is_set():
                has_failed.set()
            raise

    def ask(shape):
        prompt = torch.ones(shape, dtype=torch.long, device="cuda")
        return guard.answer(
            generate, prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW,
            min_new_tokens=NEW, do_sample=False, pad_token_id=0,
        )  # fmt: skip

    @torch.no_grad()
    def read(*, cache_implementation=None):
        # In a thread the phantom does not know when generate is to stop.
        prompt = torch.ones(SHORT, dtype=torch.long, device="cuda")
        held = torch.empty(BESIDE_BYTES, dtype=torch.uint8, device="cuda")
        shapes = [list(model(prompt).logits.shape)]
        has_begun.set()
        has_failed.wait()
        del held
        return [*shapes, list(model(prompt).logits.shape)]

    def note(shape):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        row = {"shape": shape, "recoveries": guard.num_recoveries}
        try:
            row["result"] = list(ask(shape).shape)
        except ullage.RequestTooLarge as error:
            row |= {"needed": error.needed_bytes, "free": error.free_bytes, "text": str(error)}
        gc.collect()
        row |= {"allocated": torch.cuda.memory_allocated() - before,
                "recoveries": guard.num_recoveries - row["recoveries"],
                "peak": torch.cuda.max_memory_allocated()}  # fmt: skip
        torch.cuda.reset_peak_memory_stats()
        return row

    said = io.StringIO()
    with contextlib.redirect_stderr(said), ullage.guard_inference(model) as guard:
        rows = [note(shape) for shape in (SHORT, LONG, TOO_LONG, SHORT)]
        # The pool's thread lives on after its request, as those of servers do.
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(lambda: guard.answer(read))
            has_begun.wait()
            try:
                beside = [list(ask(LONG).shape), other.result()]
            finally:
                has_failed.set()
    torch.cuda.empty_cache()
    document = {
        "rows": rows, "beside": beside, "said": said.getvalue().splitlines(),
        "element_bytes": 2, "reserved": torch.cuda.memory_reserved(),
    }  # fmt: skip
    print(json.dumps(document), file=sys.stderr)


if __name__ == "__main__":
    main()
