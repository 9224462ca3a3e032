"""Replays plans of small models and says what came of each: a document a case, in one list."""

import json
import threading

import torch
from torch import nn
from torch.nn import functional as F

from ullage.act.techniques import catalog
from ullage.act.techniques.applying.apply import describe_program
from ullage.act.techniques.catalog import CHECKPOINT
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.replaying import replay as replaying
from ullage.act.techniques.technique import Action, Place, Semantics, Technique
from ullage.ground.protocol.plain import plain

WIDTH, LAYERS = 32, 6
BLOCKS = tuple(f"blocks.{number}" for number in range(LAYERS))
MLPS = tuple(f"{name}.mlp" for name in BLOCKS)


class Block(nn.Module):
    """Causal attention and a part that treats each position by itself."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.proj(y.transpose(1, 2).flatten(2)))
        return x + self.mlp(x)


class Model(nn.Module):
    """Words to logits."""

    def __init__(self, dropout=0.0, words=5000):
        super().__init__()
        self.embedding = nn.Embedding(words, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Casting(Block):
    """Names a type, as norms and rotary positions do that are computed in float32."""

    def forward(self, x):
        return super().forward(x.float().square().to(torch.float32).sqrt() + x)


class CastingModel(Model):
    """Words to logits, by blocks that name a type."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Casting() for _ in range(LAYERS))


class Locked(Model):
    """What cannot be copied."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class WithoutKernel(Model):
    """An operation that the CPU does not have."""

    def forward(self, ids):
        return super().forward(ids) + torch.ops.without.kernel(self.head.weight)


def with_zeros(model):
    """Projections that start at zero: whatever attention mixes, nothing is to be seen of it."""
    with torch.no_grad():
        for block in model.blocks:
            block.proj.weight.zero_()
            block.proj.bias.zero_()
    return model


def scales(target, action):
    """Stands for a technique with a fault that no shape shows."""
    for path in action.modules:
        target.wrap_forward(path, lambda forward, x: forward(x) * 1.0001)


FAULTY = Technique(
    name="faulty", does="a fault", semantics=Semantics.SAME, place=Place.MODULES,
    reference="https://example.com", apply=scales,
)  # fmt: skip


def replayed(model, *actions, length=256):
    """What comes of a plan of these actions."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    plan = Plan(actions, describe_program(model, optimizer))
    ids = torch.randint(0, 100, (8, length))
    return plain(replaying.replay(plan, model, [optimizer], model, ((ids,), {})))


def main():
    """All cases."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.library.define("without::kernel", "(Tensor x) -> Tensor")
    catalog.TECHNIQUES["faulty"] = FAULTY
    checkpoint = Action(CHECKPOINT.name, BLOCKS)
    huge = replaying._MOST_BYTES
    found = {
        "checkpoint": replayed(Model(dropout=0.1), checkpoint),
        "casting": replayed(CastingModel(), checkpoint),
        "casting, selectively": replayed(
            CastingModel(), Action("selective_checkpoint", BLOCKS)
        ),
        "several": replayed(
            Model(), Action("chunked_loss"), Action("free_gradients"),
            Action("checkpoint", BLOCKS[:4]), Action("offload_activations", BLOCKS[2:]),
            Action("optimizer_offload"),
        ),
        "tiles of blocks": replayed(Model(), Action("tiled_mlp", BLOCKS)),
        "tiles of blocks, zeros": replayed(with_zeros(Model()), Action("tiled_mlp", BLOCKS)),
        "tiles of parts": replayed(Model(), Action("tiled_mlp", MLPS)),
        "a fault": replayed(Model(), Action("faulty", BLOCKS[5:])),
        "rounding": replayed(Model(), Action("bf16_states"), checkpoint),
        "locked": replayed(Locked(), checkpoint),
        "without a kernel": replayed(WithoutKernel(), checkpoint),
    }  # fmt: skip
    replaying._MOST_BYTES = 1000
    found["too large"] = replayed(Model(), checkpoint)
    replaying._MOST_BYTES = huge
    print(json.dumps(found))


main()
