"""Trains small models with a technique and without, on a device, and says what came of each.

alone.py cpu '[{"technique": "checkpoint", "modules": ["blocks.0"], "model": "text"}, ...]'

A case without "technique" is the model as it is. Half of the steps come under the technique, the
other half after it was undone. The last line of the output is a list, a document a case.
"""

import gc
import hashlib
import json
import sys
from operator import itemgetter

import torch
from torch import nn
from torch.nn import functional as F

from ullage.errors import PlanError
from ullage.techniques.applying.apply import _check_need
from ullage.techniques.applying.changes import Changes
from ullage.techniques.applying.target import Target
from ullage.techniques.catalog import TECHNIQUES
from ullage.techniques.technique import Action

VOCABULARY, WIDTH, LENGTH, BATCH, STEPS = 512, 64, 32, 4, 3


class Block(nn.Module):
    """A transformer's block with its attention written out."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, length, 3, 4, width // 4)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        weights = self.dropout(torch.softmax(q @ k.transpose(-1, -2) / 4, dim=-1))
        x = x + self.proj((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.dropout(self.mlp(x))


class Text(nn.Module):
    """A language model with tied weights."""

    def __init__(self, scale=1):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH * scale)
        self.blocks = nn.ModuleList(Block(WIDTH * scale) for _ in range(4))
        self.head = nn.Linear(WIDTH * scale, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens.roll(-1, 1).flatten())

    @staticmethod
    def batch(scale=1, rows=BATCH):
        return torch.randint(VOCABULARY, (rows, LENGTH * scale))


class Plain(Text):
    """The same, of whose logits the program takes the loss."""

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Image(nn.Module):
    """Convolutions with batch statistics."""

    def __init__(self, scale=1):
        super().__init__()
        layers = []
        for channels in (3, 16 * scale, 16 * scale):
            layers += [nn.Conv2d(channels, 16 * scale, 3, padding=1), nn.BatchNorm2d(16 * scale)]
            layers += [nn.ReLU(), nn.Dropout(0.1)]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(16 * scale, 10)

    def forward(self, images):
        return self.head(self.features(images).mean((2, 3))).square().mean()

    @staticmethod
    def batch(scale=1, rows=BATCH):
        return torch.randn(rows, 3, 16 * scale, 16 * scale)


class Llama(nn.Module):
    """A language model of transformers, called as its users do."""

    def __new__(cls, scale=1):
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=VOCABULARY * scale,
            hidden_size=WIDTH,
            intermediate_size=4 * WIDTH,
            num_hidden_layers=2,
            num_attention_heads=4,
            attn_implementation="eager",
        )
        return LlamaForCausalLM(config)

    batch = Text.batch


MODELS = {"text": Text, "plain": Plain, "image": Image, "llama": Llama}


def digest(values):
    """A digest of tensors and what else there is, by value."""
    found = hashlib.sha256()
    for value in values:
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu().contiguous()
            found.update(f"{value.dtype}{tuple(value.shape)}".encode())
            found.update(value.view(-1).view(torch.uint8).numpy().tobytes())
        else:
            found.update(repr(value).encode())
    return found.hexdigest()[:16]


def marks(model, optimizer):
    """What is on the model and its optimizer besides their values."""
    owners = [*model.modules(), optimizer]
    own = [{k: len(v) if "hooks" in k else None for k, v in vars(one).items()} for one in owners]
    hooks = [
        (len(one._backward_hooks or ()), len(one._post_accumulate_grad_hooks or ()))
        for one in model.parameters()
    ]
    groups = [
        {k: v for k, v in group.items() if k not in {"params", "lr"}}
        for group in optimizer.param_groups
    ]
    return [repr(one) for one in (*own, *hooks, groups, optimizer.defaults, type(optimizer))]


def run(model, batch, case):
    """The loss."""
    if isinstance(model, Plain):
        logits = model(batch)
        return F.cross_entropy(logits.transpose(1, 2), batch.roll(-1, 1))
    if not hasattr(model, "config"):
        return model(batch)
    labels = batch.clone()
    if case.get("leaves_out"):
        labels[0, 3:] = -100
    return model(batch, labels=labels).loss


def step(model, optimizer, batch, case):
    """One step, with the mistakes that a case wants."""
    if not case.get("zero_late") and not case.get("never_zero"):
        optimizer.zero_grad()
    loss = run(model, batch, case)
    if case.get("zero_late"):
        optimizer.zero_grad()
    if case.get("scaler"):
        loss = torch.amp.GradScaler(batch.device.type).scale(loss)
    loss.backward()
    if case.get("twice"):
        run(model, batch, case).backward()
    if case.get("clip") == "norm":
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if case.get("clip") == "value":
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
    # Read past techniques that refuse programs which read gradients.
    held = [torch.Tensor.grad.__get__(parameter) for parameter in model.parameters()]
    gradients = [one.clone() for one in held if one is not None]
    del held
    if case.get("closure") or case.get("optimizer") == "LBFGS":
        optimizer.step(lambda: loss)
    else:
        optimizer.step()
    return loss.item(), gradients if batch.device.type == "cpu" else []


def apply(one, target):
    """Applies a technique."""
    action = Action(one["technique"], tuple(one.get("modules", ())), one.get("settings", {}))
    technique = TECHNIQUES[action.technique]
    technique.check(action)
    for need in technique.needs:
        _check_need(technique.name, need)
    technique.apply(target, action)


def train(device, case):
    """What came of a case."""
    torch.manual_seed(0)
    scale = case.get("scale", 1)
    model = MODELS[case["model"]](scale).to(device)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = case.get("dropout", module.p)
    kind = getattr(torch.optim, case.get("optimizer", "AdamW"))
    optimizer = kind(model.parameters(), lr=1e-3, **case.get("optimizer_settings", {}))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    optimizer.zero_grad()
    if case.get("optimizer") != "LBFGS":
        optimizer.step()  # the scheduler's count of steps is on the optimizer from now on
    if case.get("spoils"):
        model.blocks[1].norm.register_forward_hook(
            lambda _, given, __: setattr(model, "spoiled", given[0].mul_(2))
        )
    before, keys = marks(model, optimizer), list(model.state_dict())
    losses, gradients, peak, kept = [], [], 0, 0
    with Changes() as changes:
        for one in (*case.get("under", ()), case):
            if "technique" in one:
                apply(one, Target(model, [optimizer], changes))
        for number in range(2 * STEPS):
            batch = MODELS[case["model"]].batch(scale, case.get("rows", BATCH)).to(device)
            if device == "cuda":
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            loss, found = step(model, optimizer, batch, case)
            del batch
            scheduler.step()
            losses.append(loss)
            gradients += found
            if number == STEPS - 1:
                if device == "cuda":
                    requested = torch.cuda.memory_stats()
                    peak = requested["requested_bytes.all.peak"]
                    kept = requested["requested_bytes.all.current"]
                under = list(model.state_dict()), sorted(optimizer.state_dict()["state"])
                changes.undo()
    held = [optimizer.state[one] for one in model.parameters() if one in optimizer.state]
    states = [
        part for one in held for pair in sorted(one.items(), key=itemgetter(0)) for part in pair
    ]
    return {
        "losses": losses,
        "gradients": digest(gradients),
        "parameters": digest(model.state_dict().values()) if device == "cpu" else None,
        "states": digest(states) if device == "cpu" else None,
        "generator": digest([torch.get_rng_state()]),
        "keys_kept": under[0] == keys,
        "states_listed": len(under[1]),
        "left_over": [one for one in marks(model, optimizer) if one not in before],
        "peak_bytes": peak,
        "kept_bytes": kept,
    }


def main():
    device, cases = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)
    found = []
    for case in cases:
        try:
            found.append(train(device, case))
        except PlanError as error:
            found.append({"refused": str(error)})
        gc.collect()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
