"""Takes the loss of a small model in the ways in which programs do, by chunks and as it is.

The last line of the output is a document: how far loss and gradients are off in each way that goes
with it, and why the others do not.
"""

import json

import torch
from torch import nn
from torch.nn import functional as F

from ullage.act.techniques.applying.changes import Changes
from ullage.act.techniques.applying.target import Target
from ullage.act.techniques.chunked_loss import CHUNKED_LOSS
from ullage.act.techniques.technique import Action
from ullage.ground.errors import PlanError

ROWS, LENGTH, WIDTH, WORDS = 3, 7, 16, 100


class Model(nn.Module):
    """Words, a layer, and a head whose logits go into a loss."""

    def __init__(self, loss_of, num_classes):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, num_classes)
        self.loss_of = loss_of

    def forward(self, words, targets):
        return self.loss_of(self.head(self.layer(self.words(words))), targets)


class Summed(torch.autograd.Function):
    """A function with a backward of its own, which torch does not ask about."""

    @staticmethod
    def forward(context, logits):
        context.shape = logits.shape
        return logits.sum()

    @staticmethod
    def backward(context, gradient):
        return gradient.expand(context.shape)


def plain(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def changed(logits, targets, change):
    change(logits)
    return plain(logits, targets)


GOES = {
    "flattened": plain,
    "ignored": lambda x, y: F.cross_entropy(
        x.view(-1, x.size(-1)), y.where(y > 9, -1).view(-1), ignore_index=-1
    ),
    "shifted": lambda x, y: F.cross_entropy(
        x[..., :-1, :].contiguous().view(-1, x.shape[-1]), y[..., 1:].reshape(-1)
    ),
    "summed": lambda x, y: F.cross_entropy(
        x[:, 1:].float().reshape(-1, x.shape[-1]), y[:, 1:].reshape(-1), reduction="sum"
    ),
    "transposed": lambda x, y: F.cross_entropy(x.transpose(1, 2), y),
    "weighted": lambda x, y: nn.CrossEntropyLoss(torch.linspace(0.1, 2, x.shape[-1]))(x.mT, y),
    "permuted": lambda x, y: 0.3 * F.cross_entropy(x.permute(0, 2, 1), y),
    "first row": lambda x, y: F.cross_entropy(x[0, 0], y[0, 0]),
    "accuracy beside": lambda x, y: plain(x, y) + 0 * (x.argmax(-1) == y).float().mean(),
    "twice": lambda x, y: plain(x, y) + F.cross_entropy(x[:, -1], y[:, -1]),
}
REFUSED = {
    "capped": lambda x, y: plain((x / 30).tanh(), y),
    "regularised": lambda x, y: plain(x, y) + x.logsumexp(-1).square().mean(),
    "in place": lambda x, y: changed(x, y, lambda x: x.div_(2)),
    "by an index": lambda x, y: changed(x, y, lambda x: x.__setitem__((..., 0), 0.0)),
    "smoothed": lambda x, y: F.cross_entropy(x.mT, y, label_smoothing=0.1),
    "each": lambda x, y: F.cross_entropy(x.mT, y, reduction="none").mean(),
    "probabilities": lambda x, y: F.cross_entropy(x, F.one_hot(y, x.shape[-1]).to(x.dtype)),
    "one class": lambda x, y: plain(x, y) + x[0, 0, 1, ...],
    "own backward": lambda x, y: Summed.apply(x),
    "hooked": lambda x, y: changed(x, y, lambda x: x.register_hook(print)),
    "no loss": lambda x, y: x.sum(),
}


def train(loss_of, *, is_chunked, casts=False, dtype=torch.float32, num_classes=WORDS):
    """The loss and the gradients."""
    torch.manual_seed(0)
    model = Model(loss_of, num_classes).to(dtype)
    words, targets = torch.randint(num_classes, (2, ROWS, LENGTH))
    with Changes() as changes:
        if is_chunked:
            target = Target(model, [], changes)
            CHUNKED_LOSS.apply(target, Action("chunked_loss", (), {"num_rows": 5}))
        with torch.autocast("cpu", torch.bfloat16, enabled=casts):
            loss = model(words, targets)
        loss.backward()
    return [loss.detach(), *(one.grad for one in model.parameters())]


def deviation(loss_of, **how):
    """The largest of loss and gradients, by the largest value of each."""
    found, wanted = (train(loss_of, is_chunked=one, **how) for one in (True, False))
    pairs = list(zip(found, wanted, strict=True))
    if any(one.dtype != other.dtype for one, other in pairs):
        return "another type"
    return max(((one - other).abs().max() / other.abs().max()).item() for one, other in pairs)


def reason(loss_of):
    """Why it does not go."""
    try:
        train(loss_of, is_chunked=True)
    except PlanError as error:
        return str(error)
    return ""


torch.set_num_threads(1)
print(
    json.dumps(
        {
            "float32": {name: deviation(one) for name, one in GOES.items()},
            "as many words as features": deviation(plain, num_classes=WIDTH),
            "float64": deviation(plain, dtype=torch.float64),
            "bfloat16": deviation(plain, dtype=torch.bfloat16),
            "autocast": {name: deviation(one, casts=True) for name, one in GOES.items()},
            "refused": {name: reason(one) for name, one in REFUSED.items()},
        }
    )
)
