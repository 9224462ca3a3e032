"""Builds or loads a model of the shape of a Llama, and moves it to the GPU; prints what it took."""

import json
import sys
import threading
from pathlib import Path

import torch
from torch import nn

SHAPES = {  # hidden, intermediate, layers, heads, key and value heads, vocabulary
    "tiny": (512, 1408, 2, 8, 4, 8000),
    "7b": (4096, 11008, 32, 32, 32, 32000),
    "70b": (8192, 28672, 80, 64, 8, 128256),
}


class Block(nn.Module):
    def __init__(self, hidden, intermediate, key_value):
        super().__init__()
        sizes = [(hidden, hidden), (hidden, key_value), (hidden, key_value), (hidden, hidden)]
        sizes += [(hidden, intermediate), (hidden, intermediate), (intermediate, hidden)]
        self.layers = nn.ModuleList(nn.Linear(*size, bias=False) for size in sizes)
        self.norms = nn.ModuleList(nn.RMSNorm(hidden) for _ in range(2))


def plain(shape):
    hidden, intermediate, layers, heads, key_value_heads, vocabulary = SHAPES[shape]
    key_value = hidden // heads * key_value_heads
    return nn.Sequential(
        nn.Embedding(vocabulary, hidden),
        *[Block(hidden, intermediate, key_value) for _ in range(layers)],
        nn.RMSNorm(hidden),
        nn.Linear(hidden, vocabulary, bias=False),
    )


def config(shape):
    from transformers import LlamaConfig

    hidden, intermediate, layers, heads, key_value_heads, vocabulary = SHAPES[shape]
    return LlamaConfig(
        hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=key_value_heads, vocab_size=vocabulary,
        architectures=["LlamaForCausalLM"],
    )  # fmt: skip


def write_config(shape, directory):
    config(shape).save_pretrained(directory)
    path = Path(directory, "config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"torch_dtype": "bfloat16"}))


def load(directory, **options):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, **options)


def built(shape, how):
    if how == "plain":
        return plain(shape)
    if how == "bfloat16":
        torch.set_default_dtype(torch.bfloat16)
        return plain(shape)
    if how == "half":
        return plain(shape).half()
    if how == "loaded":  # another's weights, copied, and pinned
        model, other = plain(shape), plain(shape)
        model.load_state_dict(other.state_dict())
        del other
        for parameter in model.parameters():
            parameter.data = parameter.data.pin_memory()
        return model
    if how == "zeros":
        with torch.device("meta"):
            model = plain(shape)
        model.to_empty(device="cpu")
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        return model
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM(config(shape))


def say(model):
    print(
        json.dumps(
            {
                "numbers": sum(p.numel() for p in model.parameters()),
                "allocated": torch.cuda.memory_allocated(),
                "dtype": str(next(model.parameters()).dtype),
                "device": str(next(model.parameters()).device),
                "name": getattr(model, "name_or_path", None),
            }
        )
    )


verb, shape, *words = sys.argv[1:]
if verb == "build":
    say(built(shape, *words).to("cuda"))
elif verb == "load":
    write_config(shape, "model")
    if "index" in words:
        with torch.device("meta"):
            names = list(built(shape, "hugging_face").state_dict())
        files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
        places = {name: files[i % 2] for i, name in enumerate(names)}
        text = json.dumps({"metadata": {}, "weight_map": places})
        Path("model", "model.safetensors.index.json").write_text(text)
    options = dict(word.split("=") for word in words if "=" in word)
    if "dtype" in options:
        options["dtype"] = getattr(torch, options["dtype"])
    say(load("model", **options).to("cuda"))
elif verb == "shard":  # built on the CPU, and sharded
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("nccl")
    model = plain(shape)
    for block in model:
        fully_shard(block)
    fully_shard(model)
    say(model)
elif verb == "there":  # files that exist
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(config(shape))
    model.save_pretrained("model")
    again = load("model")
    pairs = zip(model.parameters(), again.parameters(), strict=True)
    print(json.dumps([torch.equal(one, other) for one, other in pairs]))
    again.to("cuda")
elif verb == "threads":  # weights that another thread reads, by operations
    found = []

    def read(tensor):
        found.append(float(tensor.double().sum()))

    torch.zeros(1, device="cuda")
    torch.manual_seed(1)
    begun, ended = threading.Event(), threading.Event()
    held = []

    def wait():
        torch.ones(3).sum()  # it has used torch before anything is put off
        begun.set()
        ended.wait()
        read(held[0])

    waiting = threading.Thread(target=wait)
    waiting.start()
    begun.wait()
    held.append(torch.randn(1000, 1000))
    ended.set()
    waiting.join()
    for make in (lambda: torch.randn(1000, 1000), lambda: torch.ones(1000, 1000) * 3):
        tensor = make()
        thread = threading.Thread(target=read, args=(tensor,))
        thread.start()
        thread.join()
    joined = torch.cat([torch.randn(700, 1000), torch.zeros(700, 1000), torch.ones(600, 1000)])
    read(joined)
    read(joined[650:1350])
    target = torch.ones(2000, 1000)
    target[:1000].copy_(torch.rand(1000, 1000))
    target[500:].mul_(2)
    read(target)
    read(torch.rand(1000, 1000).t().contiguous()[3])
    read((torch.rand(1000, 1000) * 0.5 - 1).pin_memory())
    full = torch.full((1000, 1000), 7, dtype=torch.int32)
    read(full)
    full.zero_()
    read(full)
    read(torch.zeros(1000, 1000).clone().add_(1))
    print(json.dumps(found))
