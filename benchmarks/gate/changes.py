"""Changes of tests/programs/gate/train.py: twenty that take more memory, and twenty that do not."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Planted:
    """A regression: what is replaced by what, and who holds more of it.

    Attributes:
        edits: texts of the program and what stands for them.
        categories: any of which is right.
        modules: likewise.
    """

    name: str
    edits: tuple[tuple[str, str], ...]
    categories: frozenset[str]
    modules: frozenset[str]


@dataclass(frozen=True, slots=True)
class Harmless:
    """A change of the program, or of what is around it, that takes no more memory."""

    name: str
    edits: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = field(default=())
    cpus: int = 0


def planted(name: str, *edits: tuple[str, str], categories: str, modules: str) -> Planted:
    return Planted(name, edits, frozenset(categories.split()), frozenset(modules.split()))


_PROJ = "        return self.proj(out.transpose(1, 2).reshape(batch, tokens, dim))"
_QKV = "        q, k, v = ("
_ATTEND = "        out = F.scaled"
_MLP = "        return self.down(F.gelu(self.up(x)))"
_BLOCK = "        return x + self.mlp(self.mlp_norm(x))"
_HEAD = "        return self.head(self.norm(x))"
_LOSS = "        loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten())"
_BATCH = "        ids = make_batch()"
_MODEL = '    model = Model().to("cuda")'
_OPTIMIZER = "    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)"
_ZERO = "        optimizer.zero_grad()"
_NUMBERS = "BATCH, TOKENS, DIM, HEADS, LAYERS, VOCAB = 8, 512, 512, 8, 4, 8192"

REGRESSIONS = (
    planted(
        "the MLP squares what GELU gives",
        (_MLP, "        h = F.gelu(self.up(x))\n        return self.down(h * h.sigmoid())"),
        categories="activation", modules="blocks.*.mlp",
    ),
    planted(
        "dropout in the MLP",
        (_MLP, "        return self.down(F.dropout(F.gelu(self.up(x)), 0.1))"),
        categories="activation", modules="blocks.*.mlp",
    ),
    planted(
        "queries in double precision",
        (_QKV, "        x = x.double().float()\n" + _QKV),
        (_PROJ, "        self.seen = x.double()\n" + _PROJ),
        categories="activation", modules="blocks.*.attention",
    ),
    planted(
        "a mask as a buffer of every attention",
        ("        self.proj = nn.Linear(DIM, DIM)\n",
         ("        self.proj = nn.Linear(DIM, DIM)\n"
         '        self.register_buffer("mask", torch.ones(2 * TOKENS, 2 * TOKENS).tril())\n')),
        categories="buffer", modules="blocks.*.attention",
    ),
    planted(
        "a wider MLP",
        ("        self.up = nn.Linear(DIM, 4 * DIM)\n        self.down = nn.Linear(4 * DIM, DIM)",
         ("        self.up = nn.Linear(DIM, 4 * DIM + 128)\n"
         "        self.down = nn.Linear(4 * DIM + 128, DIM)")),
        categories="activation", modules="blocks.*.mlp blocks.*.mlp.up blocks.*.mlp.down",
    ),
    planted(
        "one more residual copy",
        (_BLOCK, "        x = x * torch.sigmoid(x)\n" + _BLOCK),
        categories="activation", modules="blocks.*",
    ),
    planted(
        "a larger vocabulary",
        (_NUMBERS, _NUMBERS.replace("8192", "8448")),
        categories="activation temporary parameter optimizer_state",
        modules="(outside) head embedding",
    ),
    planted(
        "longer sequences",
        (_NUMBERS, _NUMBERS.replace("8, 512, 512", "8, 528, 512")),
        categories="activation", modules="(outside) blocks.*.mlp.up head blocks.*.mlp",
    ),
    planted(
        "a second loss kept with its graph",
        (_LOSS, _LOSS + "\n        kept.append(logits[:1].square().sum())"),
        (_MODEL, "    kept = []\n" + _MODEL),
        categories="activation", modules="(outside) head",
    ),
    planted(
        "an average of the weights",
        (_OPTIMIZER, _OPTIMIZER
         + "\n    averages = [weight.detach().clone() for weight in model.parameters()]"),
        categories="input", modules="(outside)",
    ),
    planted(
        "AMSGrad",
        (_OPTIMIZER, _OPTIMIZER.replace("lr=1e-4", "lr=1e-4, amsgrad=True")),
        categories="optimizer_state",
        modules="blocks.*.mlp.up blocks.*.mlp.down embedding head",
    ),
    planted(
        "gradients kept as zeros",
        (_ZERO, "        optimizer.zero_grad(set_to_none=False)"),
        categories="gradient", modules="blocks.*.mlp.up blocks.*.mlp.down embedding head",
    ),
    planted(
        "logits scaled in a copy",
        (_HEAD, _HEAD + " / torch.ones((), device='cuda', requires_grad=True)"),
        categories="activation temporary", modules=". head (outside)",
    ),
    planted(
        "logits kept for a metric",
        (_LOSS, "        metrics.append(logits.detach()[..., :512].contiguous())\n" + _LOSS),
        (_MODEL, "    metrics = []\n" + _MODEL),
        categories="activation", modules="(outside)",
    ),
    planted(
        "batches prepared ahead, as vectors",
        (_MODEL, _MODEL + "\n    ahead = [torch.randn(BATCH, TOKENS, DIM).to('cuda')"
         " for _ in range(2)]"),
        categories="input", modules="(outside)",
    ),
    planted(
        "embeddings kept for later",
        ("        x = self.embedding(ids)\n", ("        x = self.embedding(ids)\n"
         "        self.seen = torch.cat((x.detach(), x.detach()), dim=-1)\n")),
        categories="activation", modules=".",
    ),
    planted(
        "a gate before the head",
        (_HEAD, "        x = x * torch.sigmoid(x)\n" + _HEAD),
        categories="activation", modules=".",
    ),
    planted(
        "a second output layer",
        ("        self.head = nn.Linear(DIM, VOCAB, bias=False)\n",
         ("        self.head = nn.Linear(DIM, VOCAB, bias=False)\n"
         "        self.other = nn.Linear(DIM, VOCAB, bias=False)\n")),
        categories="parameter", modules="other",
    ),
    planted(
        "softmax of the attention by hand",
        ("        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n",
         "        scores = (q @ k.transpose(-2, -1) / 8).softmax(-1)\n        out = scores @ v\n"),
        categories="activation", modules="blocks.*.attention",
    ),
    planted(
        "a norm of the queries",
        (_ATTEND, "        q = F.layer_norm(q * 1.5, q.shape[-1:])\n" + _ATTEND),
        categories="activation", modules="blocks.*.attention",
    ),
)  # fmt: skip

HARMLESS = (
    Harmless("nothing"),
    Harmless("a comment", ((_MODEL, "    # The model.\n" + _MODEL),)),
    Harmless("another seed", (("manual_seed(0)", "manual_seed(4711)"),)),
    Harmless("no seed", (("    torch.manual_seed(0)\n", ""),)),
    Harmless("a hash seed", env=(("PYTHONHASHSEED", "1"),)),
    Harmless("another hash seed", env=(("PYTHONHASHSEED", "12345"),)),
    Harmless("one core", cpus=1),
    Harmless("one thread", env=(("OMP_NUM_THREADS", "1"),)),
    Harmless("four threads", env=(("OMP_NUM_THREADS", "4"),)),
    Harmless("another learning rate", (("lr=1e-4", "lr=3e-4"),)),
    Harmless("weight decay", (("lr=1e-4", "lr=1e-4, weight_decay=0.1"),)),
    Harmless("a renamed module", (("self.mlp", "self.feed_forward"),)),
    Harmless("a renamed class", (("Mlp", "FeedForward"),)),
    Harmless("a renamed function", (("make_batch", "next_batch"),)),
    Harmless("a renamed variable", (("logits", "scores"),)),
    Harmless(
        "the loss in a function",
        ((_LOSS, "        loss = loss_of(logits, ids)"),
         ("def main()", ("def loss_of(logits: Tensor, ids: Tensor) -> Tensor:\n"
          '    """Of the next tokens."""\n'
          "    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())\n\n\ndef main()"))),
    ),
    Harmless(
        "blocks in a Sequential",
        (("nn.ModuleList(Block() for _ in range(LAYERS))",
          "nn.Sequential(*(Block() for _ in range(LAYERS)))"),
         ("        for block in self.blocks:\n            x = block(x)\n",
          "        x = self.blocks(x)\n")),
    ),
    Harmless("a progress line", ((_BATCH, _BATCH + '\n        print("step")'),)),
    Harmless("a loss that is read", ((_ZERO, _ZERO + "\n        print(loss.item())"),)),
    Harmless("functions in another order", (("class Mlp", "_UNUSED = 1\n\n\nclass Mlp"),)),
)  # fmt: skip
