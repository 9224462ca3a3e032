"""One rank's two steps of a 70B decoder under FSDP2, with all that persists kept on the host.

The passes run, and the gradients go to the host. The step of the optimizer is left out, which
would compute a quarter of the numbers on the CPU; what it needs is allocated.
"""

import argparse
import json

import torch
import torch.distributed as dist
from decoder import SHAPES, Decoder
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

PARSER = argparse.ArgumentParser(description=__doc__)
PARSER.add_argument("--on-gpu", action="store_true", help="keep everything there instead")
PARSER.add_argument("--length", type=int, default=4096)
ARGS = PARSER.parse_args()


def main() -> None:
    torch.cuda.set_device(dist.get_node_local_rank(0))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    shape = SHAPES["70b"]
    with torch.device("meta"):
        model = Decoder(shape, segments=shape.layers)
    options = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}
    if not ARGS.on_gpu:
        options["offload_policy"] = CPUOffloadPolicy()
    for part in (*model.layers, model.embedding, model.head, model):
        fully_shard(part, **options)
    model.to_empty(device="cuda" if ARGS.on_gpu else "cpu")
    shards = [weight.to_local() for weight in model.parameters()]
    states = [torch.zeros_like(shard) for shard in shards for _ in range(2)]
    tokens = torch.zeros(1, ARGS.length, dtype=torch.long, device="cuda")
    for _ in range(2):
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        gradient_bytes = sum(weight.grad.to_local().nbytes for weight in model.parameters())
        for weight in model.parameters():
            weight.grad = None
    said = {
        "weight_bytes": sum(shard.nbytes for shard in shards),
        "gradient_bytes": gradient_bytes,
        "state_bytes": sum(state.nbytes for state in states),
    }
    print(json.dumps(said))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
