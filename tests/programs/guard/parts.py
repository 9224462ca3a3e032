"""Steps of a guard whose batch is split, on the CPU; prints an answer a scenario.

parts.py [SCENARIO ...]

The model raises an out-of-memory error where it is called with more rows than `limit`, as a batch
does that fits on no rung. Numbers have 64 bits, so that rounding is told from any other difference.
"""

import contextlib
import functools
import gc
import io
import json
import random
import sys
from collections import UserDict

import torch
from torch import nn
from torch.nn import functional as F

import ullage

ROWS, WIDTH, PADDING = 8, 12, -100
SCENARIOS = {}


def scenario(function):
    """Enters a scenario."""
    SCENARIOS[function.__name__] = function
    return function


def raised(call):
    """The kind and the text of what a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


class Block(nn.Module):
    """A perceptron around which the input goes."""

    def __init__(self, drop):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        """x and the result are (rows, tokens, WIDTH)."""
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


class Model(nn.Module):
    """A classifier of tokens that has memory for so many rows."""

    def __init__(self, drop):
        super().__init__()
        self.blocks = nn.ModuleList(Block(drop) for _ in range(3))
        self.head = nn.Linear(WIDTH, 5)
        self.limit = ROWS
        self.calls = []

    def forward(self, x):
        """x is (rows, tokens, WIDTH), the result (rows, tokens, 5)."""
        self.calls = [*self.calls, len(x)]
        for block in self.blocks:
            x = block(x)
        if len(x) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return self.head(x)


class Program:
    """A model, its optimizer, and a step over parts."""

    def __init__(self, *, drop=0.0, lr=1e-2):
        torch.manual_seed(1)
        random.seed(1)
        self.model = Model(drop).double()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.steps_for_each_part = False
        self.faults = contextlib.nullcontext()
        self.keeps = False

    def batch(self, rows=ROWS):
        """Inputs, and targets of which some are padding."""
        x = torch.randn(rows, 3, WIDTH, dtype=torch.float64)
        targets = torch.randint(5, (rows, 3))
        targets[: rows // 2, 1:] = PADDING
        targets[2:3] = PADDING  # a row that counts for nothing
        return {"x": x, "targets": targets, "name": "a batch", "scale": torch.tensor(1.0)}

    def fn(self, parts):
        """Forward and backward of each part, and the optimizer's step."""
        total = 0.0
        with self.faults:
            for part, weight in parts:
                logits = self.model(part["x"])
                loss = weight * F.cross_entropy(logits.flatten(0, 1), part["targets"].flatten())
                loss.backward()
                total += loss.detach()
                if self.steps_for_each_part:
                    self.optimizer.step()
            if not self.steps_for_each_part and not self.keeps:
                self.optimizer.step()
                self.optimizer.zero_grad()
        return float(total)

    def state(self):
        """Parameters and optimizer states, one after another."""
        tensors = [*self.model.parameters()]
        tensors += [self.optimizer.state[each]["exp_avg"] for each in self.model.parameters()]
        return torch.cat([each.detach().flatten() for each in tensors])


def weigh(part):
    """The tokens that count."""
    return (part["targets"] != PADDING).sum()


BY_TOKENS = functools.partial(ullage.split_rows, weigh=weigh)


def train(limits, *, split=BY_TOKENS, drop=0.0, **settings):
    """A guarded training of which each step has memory for so many rows: the program, losses,
    rungs, and what was said.
    """
    program = Program(drop=drop)
    said = io.StringIO()
    losses, rungs = [], []
    with (
        contextlib.redirect_stderr(said),
        ullage.guard(program.model, program.optimizer, **settings) as guard,
    ):
        for limit in limits:
            program.model.limit = limit
            losses.append(guard.step_in_parts(program.fn, program.batch(), split=split))
            rungs.append(guard.rung)
    return program, losses, rungs, said.getvalue().splitlines()


def distance(program, other):
    """The largest difference of two programs' states, to their largest number."""
    ours, theirs = program.state(), other.state()
    return float((ours - theirs).abs().max() / theirs.abs().max())


@scenario
def it_recovers():
    """A step that fits in two or four parts, and in none."""
    whole, whole_losses, _, _ = train([ROWS] * 3)
    answer = {}
    for limit in (4, 2):
        program, losses, rungs, said = train([ROWS, limit, limit])
        errors = [abs(a - b) for a, b in zip(losses, whole_losses, strict=True)]
        answer[limit] = {
            "state": distance(program, whole), "losses": max(errors), "rungs": rungs,
            "calls": program.model.calls, "said": said[-2:],
        }  # fmt: skip
    answer["none"] = raised(lambda: train([0]))
    return answer


@scenario
def weights_count():
    """Without the weights of tokens another training comes out, which the guard cannot see."""
    whole, _, _, _ = train([ROWS] * 3)
    by_rows, _, _, _ = train([4] * 3, split=None)
    return distance(by_rows, whole)


@scenario
def counts_for_nothing():
    """The parts of a batch with a row that counts for nothing: how many, their rows, their sum."""
    parts = BY_TOKENS(Program().batch(), ROWS)
    weights = [weight for _, weight in parts]
    return [len(parts), max(len(part["x"]) for part, _ in parts), round(sum(weights), 12)]


@scenario
def the_split_is_checked():
    """Gradients of two parts against the whole: with the right weights, and with others."""
    program = Program(drop=0.5)
    optimizer, batch = program.optimizer, program.batch()
    program.fn([(batch, 1.0)])
    before = [program.state(), torch.get_rng_state()]
    check = functools.partial(ullage.check_split, program.fn, batch, program.model, optimizer)
    right, wrong = check(split=BY_TOKENS), raised(check)
    after = [program.state(), torch.get_rng_state()]
    program.keeps = True
    return {
        "right": right.distance, "wrong": wrong, "none": raised(check),
        "one": raised(lambda: ullage.check_split(
            program.fn, program.batch(1), program.model, optimizer)),
        "same": all(map(torch.equal, before, after)), "training": program.model.training,
        "gradients": sum(each.grad is not None for each in program.model.parameters()),
        "hooks": len(optimizer._optimizer_step_pre_hooks),
    }  # fmt: skip


@scenario
def it_climbs_back():
    """Down to four parts, and back up by one rung after calm steps."""
    _, _, rungs, _ = train([ROWS, 2, *[ROWS] * 14], calm_steps=2)
    return rungs


@scenario
def draws_are_named():
    """With dropout each part draws for itself."""
    return train([4], drop=0.1)[3][-2]


@scenario
def gradients_of_a_micro_batch():
    """With gradients from before a step is split while it has added nothing to them."""
    answer = {}
    for place in ("forward", "backward"):
        gradients = []
        for limit in (ROWS, 4):
            program = Program()
            program.keeps = True
            with ullage.guard(program.model, program.optimizer, plans=[]) as guard:
                guard.step_in_parts(program.fn, program.batch(), split=BY_TOKENS)
                program.model.limit = limit if place == "forward" else ROWS
                if place == "backward" and limit < ROWS:
                    program.model.blocks[0].register_full_backward_hook(fail_twice(2))
                batch = program.batch()
                call = functools.partial(guard.step_in_parts, program.fn, batch)
                end = raised(functools.partial(call, split=BY_TOKENS))
            gradients.append([each.grad for each in program.model.parameters()])
        pairs = zip(*gradients, strict=True)
        answer[place] = [end, max(float((a - b).abs().max()) for a, b in pairs)]
    return answer


def fail_twice(times):
    """A hook that fails so many times."""
    left = [times]

    def hook(*_):
        if left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    return hook


@scenario
def what_is_refused():
    """Splits that lose something, and a function that calls the optimizer for each part."""

    def with_split(split):
        return raised(lambda: train([4], split=split))

    def per_part():
        program = Program()
        program.steps_for_each_part = True
        program.model.limit = 4
        with ullage.guard(program.model, program.optimizer) as guard:
            guard.step_in_parts(program.fn, program.batch())

    def with_weights(*weights):
        return lambda batch, num: [
            (part, weight) for (part, _), weight in zip(BY_TOKENS(batch, num), weights, strict=True)
        ]

    def lose_rows(batch, _):
        return [({**batch, "x": batch["x"][:2]}, 0.5), ({**batch, "x": batch["x"][4:]}, 0.5)]

    def lose_tensor(batch, _):
        return [({"x": batch["x"]}, 0.5), ({"x": batch["x"]}, 0.5)]

    def too_many(batch, num):
        return ullage.split_rows(batch, 4 * num)

    x = torch.zeros(4, 2)
    return {
        "weights": with_split(with_weights(0.6, 0.6)),
        "negative": with_split(with_weights(1.5, -0.5)),
        "rows": with_split(lose_rows),
        "tensor": with_split(lose_tensor),
        "parts": with_split(too_many),
        "padding": with_split(functools.partial(ullage.split_rows, weigh=lambda _: 0)),
        "optimizer": raised(per_part),
        "words": raised(lambda: ullage.split_rows([x, ["a", "b", "c", "d"]], 2)),
        "rows differ": raised(lambda: ullage.split_rows((x, x[:3]), 2)),
        "no tensor": raised(lambda: ullage.split_rows({"a": 1}, 2)),
    }  # fmt: skip


@scenario
def what_is_not_split():
    """Programs whose batch is never split, and what they say."""
    answer = {}
    for kind in ("batch norm", "compiled"):
        program = Program()
        model = nn.Sequential(program.model)
        if kind == "batch norm":
            model.append(nn.BatchNorm1d(3).double())
        else:
            model = torch.compile(model, backend="eager")
        said = io.StringIO()
        with (
            contextlib.redirect_stderr(said),
            ullage.guard(model, program.optimizer, plans=[]) as guard,
        ):
            program.model.limit = 4
            end = raised(lambda: guard.step_in_parts(program.fn, program.batch()))  # noqa: B023
            raised(lambda: guard.step_in_parts(program.fn, program.batch()))  # noqa: B023
            model.eval()
            again = raised(lambda: guard.step_in_parts(program.fn, program.batch()))  # noqa: B023
        lines = [each for each in said.getvalue().splitlines() if "no batch is split" in each]
        answer[kind] = [end, lines, again]
    return answer


@scenario
def a_plain_step_after_one_in_parts():
    """It runs whole, on the leanest plan."""
    program = Program()
    with ullage.guard(program.model, program.optimizer) as guard:
        program.model.limit = 4
        guard.step_in_parts(program.fn, program.batch())
        before = guard.rung
        program.model.limit = ROWS
        guard.step(program.fn, [(program.batch(), 1.0)])
        return [before, guard.rung, program.model.calls[-1]]


@scenario
def rows_are_split():
    """The parts of nests."""
    x = torch.arange(10).reshape(5, 2)
    batch = UserDict({"ids": x, "more": (x[:, 0], [x]), "scale": torch.tensor(2.0), "text": "a"})
    parts = ullage.split_rows(batch, 2)
    first, second = (part for part, _ in parts)
    few = ullage.split_rows(x[:1], 8)
    return {
        "kinds": [type(first).__name__, type(first["more"]).__name__],
        "rows": [len(first["ids"]), len(second["ids"]), len(second["more"][1][0])],
        "same": [first["scale"].item(), first["text"], first["ids"].data_ptr() == x.data_ptr()],
        "weights": [weight for _, weight in parts], "few": [len(few), few[0][1]],
        "left": len(batch["ids"]),
    }  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    train([4])  # what torch loads with its first steps is not looked at for cycles
    gc.freeze()
    names = sys.argv[1:] or SCENARIOS
    print(json.dumps({name: SCENARIOS[name]() for name in names}))
