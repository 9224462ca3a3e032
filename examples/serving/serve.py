"""A server of a Hugging Face Llama of 1.2 billion parameters in bf16: OpenAI's completions, greedy.

Each request has a KV cache of its own: 32 KiB a token. A thread answers each, and they share the
model, so what the GPU holds hangs on who is there at once, and with how long a context.

    python examples/serving/serve.py --port 8000
    curl 127.0.0.1:8000/v1/completions -d '{"prompt": [1, 2, 3], "max_tokens": 4}'

`complete` is one request without the server. ullage.toml replays requests.jsonl against both.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig

# The shape of Llama 3.2 1B
config = LlamaConfig(
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=131072,
    rope_theta=500000.0,
    tie_word_embeddings=True,
)
with torch.device("cuda"):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


@torch.inference_mode()
def generate(prompt: list[int], max_tokens: int) -> list[int]:
    """The tokens that follow a prompt."""
    cache = DynamicCache(config=config)
    ids = torch.tensor([prompt], device="cuda")
    found = []
    for _ in range(max_tokens):
        logits = model(ids, past_key_values=cache, logits_to_keep=1).logits
        ids = logits[:, -1:].argmax(dim=-1)
        found.append(ids)
    return torch.cat(found, dim=1)[0].tolist()


def complete(request: dict) -> list[int]:
    """A line of requests.jsonl: a prompt of `input_length` tokens, `output_length` to make."""
    return generate([1] * request["input_length"], request["output_length"])


class Handler(BaseHTTPRequestHandler):
    """GET /health, and POST /v1/completions."""

    def do_GET(self) -> None:
        """Whether the model is loaded, which it is when this listens."""
        self.send(200, {"status": "ok"})

    def do_POST(self) -> None:
        """One completion; what goes wrong is answered with 500."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            tokens = generate(request["prompt"], request["max_tokens"])
        except Exception as error:
            self.send(500, {"error": {"message": str(error)}})
            return
        self.send(200, {"choices": [{"index": 0, "tokens": tokens}]})

    def send(self, status: int, document: dict) -> None:
        """Answers with a document."""
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main() -> None:
    """Serve until the process is asked to end."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    ThreadingHTTPServer(("127.0.0.1", args.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
