"""What a guard of the calls of a model does in programs of several kinds; prints an answer each."""

import contextlib
import io
import json
import sys

import torch
from contract import ConvNet, fail, marks, raised
from torch import nn
from torch.nn import functional as F
from training import Faults, differences

import ullage
from ullage.runtime.calls.shared_rung import SharedRung

SCENARIOS = {}


def scenario(function):
    """Enters a scenario."""
    SCENARIOS[function.__name__] = function
    return function


def adamw(parameters):
    """An AdamW."""
    return torch.optim.AdamW(parameters, lr=1e-2)


def sgd(parameters):
    """An SGD, which does not enlarge rounding errors."""
    return torch.optim.SGD(parameters, lr=1e-2)


class Program:
    """A model, its optimizer, and what a script counts."""

    def __init__(self, make=ConvNet, optimizer=adamw):
        torch.manual_seed(1)
        self.model = make()
        self.optimizer = optimizer(self.model.parameters())
        self.said = io.StringIO()
        self.num_draws = self.num_losses = 0

    def draw(self):
        """A batch."""
        self.num_draws += 1
        return torch.randn(2, 3, 8, 8), torch.randint(5, (2,))

    def loss(self, logits, targets):
        """The mean loss."""
        self.num_losses += 1
        return F.cross_entropy(logits, targets)

    def state(self):
        """Model, gradients, optimizer, generator."""
        return {
            **{name: each.clone() for name, each in self.model.state_dict().items()},
            **{f"gradient {name}": None if each.grad is None else each.grad.clone()
               for name, each in self.model.named_parameters()},
            **{
                f"{index} {name}": each.clone()
                for index, state in enumerate(self.optimizer.state.values())
                for name, each in state.items()
            },
            "generator": torch.get_rng_state(),
        }  # fmt: skip

    def guarded(self, **options):
        """A guard for it, which speaks to `said`."""
        return ullage.guard_model(self.model, self.optimizer, **options)


def train_once(program):
    """A step."""
    loss = program.loss(program.model(program.draw()[0]), torch.tensor([1, 2]))
    loss.backward()
    program.optimizer.step()


@scenario
def a_loss_of_torch():
    """An error within F.cross_entropy, on rung 0 and on the last one."""

    def run(number=None, first=None, *, is_guarded=True):
        program, faults = Program(), Faults([] if number is None else [number])
        guard = program.guarded() if is_guarded else contextlib.nullcontext()
        with contextlib.redirect_stderr(program.said), guard:
            for index in range(2):
                inputs, targets = program.draw()
                with Faults([first] if first and not index else []):
                    logits = program.model(inputs)
                with faults if index else contextlib.nullcontext():
                    loss = F.cross_entropy(logits, targets, label_smoothing=0.1)
                loss.backward()
                program.optimizer.step()
        lines = [each for each in program.said.getvalue().splitlines() if "cross_entropy" in each]
        return program.state(), faults.count, lines

    plain, count, _ = run(is_guarded=False)
    ends = [run(number + 1, first) for number in range(count) for first in (None, 30)]
    return [
        len(ends),
        sum(not differences(state, plain) for state, _, _ in ends),
        sum(len(lines) for _, _, lines in ends),
    ]


@scenario
def a_loss_that_is_compiled():
    """torch.jit.script and torch.compile see the loss itself, also while it is guarded."""
    from torch._dynamo.testing import CompileCounter

    program = Program()
    inputs, targets = program.draw()
    with contextlib.redirect_stderr(program.said), program.guarded():

        def loss(logits, targets):
            return F.cross_entropy(logits, targets)

        logits = program.model(inputs).detach()
        values = [loss(logits, targets), torch.jit.script(scripted)(logits, targets)]
        counts = CompileCounter()
        values.append(torch.compile(loss, backend=counts, fullgraph=True)(logits, targets))
    return [[each.item() for each in values], counts.frame_count, F.cross_entropy.__module__]


def scripted(logits, targets):
    """A loss for torch.jit.script."""
    return F.cross_entropy(logits, targets)


@scenario
def higher_orders():
    """A gradient penalty by torch.autograd.grad, which goes past the guard."""

    def step(program):
        inputs, targets = program.draw()
        loss = program.loss(program.model(inputs), targets)
        gradients = torch.autograd.grad(loss, [*program.model.parameters()], create_graph=True)
        penalty = sum(each.square().sum() for each in gradients)
        (loss + penalty).backward()
        program.optimizer.step()

    return close(step)


@scenario
def parameters_in_the_loss():
    """A penalty on the weights: the script's own graph leads to them."""

    def step(program):
        inputs, targets = program.draw()
        loss = program.loss(program.model(inputs), targets)
        loss = loss + 1e-3 * sum(each.square().sum() for each in program.model.parameters())
        loss.backward()
        program.optimizer.step()

    return close(step)


def close(step):
    """The largest difference from the same steps without a guard, and what the guard said."""
    ends = []
    for is_guarded in (False, True):
        program = Program(optimizer=sgd)
        guard = program.guarded() if is_guarded else contextlib.nullcontext()
        with contextlib.redirect_stderr(program.said), guard:
            for _ in range(2):
                step(program)
                program.optimizer.zero_grad()
        ends.append(program)
    pairs = zip(ends[0].model.parameters(), ends[1].model.parameters(), strict=True)
    largest = max((one - two).abs().max().item() for one, two in pairs)
    return {"largest": largest, "said": ends[1].said.getvalue()}


@scenario
def a_generator_and_its_critic():
    """Two models, of which one is called with what the other made."""

    def train(is_guarded):
        torch.manual_seed(1)
        maker, critic = ConvNet(), nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (maker, critic)]
        guard = ullage.guard_model(maker, optimizers) if is_guarded else contextlib.nullcontext()
        with contextlib.redirect_stderr(io.StringIO()), guard:
            for _ in range(3):
                images = torch.randn(2, 3, 8, 8)
                for optimizer, sign in zip(optimizers, (-1, 1), strict=True):
                    optimizer.zero_grad()
                    points = maker(images) if sign < 0 else maker(images).detach()
                    (sign * critic(points).mean()).backward()
                    optimizer.step()
        return {
            f"{index} {name}": each.clone()
            for index, model in enumerate((maker, critic))
            for name, each in model.state_dict().items()
        }

    return differences(train(is_guarded=True), train(is_guarded=False))


@scenario
def what_is_refused():
    """Errors that are not recovered say why, and leave the error to the script."""

    def refused(step, make=ConvNet):
        program = Program(make)
        with contextlib.redirect_stderr(program.said), program.guarded():
            return raised(lambda: step(program))

    def change_input(program):
        inputs, targets = program.draw()
        loss = program.loss(program.model(inputs), targets)
        inputs.zero_()
        program.model.head.weight.register_hook(once(fail))
        loss.backward()

    def change_parameter(program):
        inputs, targets = program.draw()
        loss = program.loss(program.model(inputs), targets)
        with torch.no_grad():
            program.model.stem.bias.add_(1)
        program.model.head.weight.register_hook(once(fail))
        loss.backward()

    def fail_in_loss(program):
        inputs, targets = program.draw()
        loss = program.loss(program.model(inputs), targets)
        loss.register_hook(lambda _: fail())
        loss.backward()

    def fail_always(program):
        inputs, _ = program.draw()
        program.model.head.register_forward_hook(lambda *_: fail())
        program.model(inputs)

    def change_shared(program):
        inputs, _ = program.draw()
        first, second = program.model(inputs)
        second.zero_()
        first.sum().backward()

    return {
        "input": refused(change_input),
        "parameter": refused(change_parameter),
        "loss": refused(fail_in_loss),
        "no rung": refused(fail_always),
        "shared": refused(change_shared, Shared),
    }


class Shared(ConvNet):
    """Returns a tensor and a view of it."""

    def forward(self, images):
        """Logits, and those of the first picture."""
        logits = super().forward(images)
        return logits, logits[:1]


def once(call):
    """A hook that calls something the first time."""
    calls = [call]
    return lambda *_: calls.pop()() if calls else None


@scenario
def what_is_no_model():
    """What is refused at the start."""
    program = Program()
    compiled = nn.Sequential(program.model)
    compiled.compile()
    replicated = nn.DataParallel(program.model)
    optimizer = program.optimizer
    with contextlib.redirect_stderr(io.StringIO()), program.guarded():
        second = raised(program.guarded().open)
    return {
        "compiled": raised(lambda: ullage.guard_model(compiled, optimizer)),
        "replicated": raised(lambda: ullage.guard_model(replicated, optimizer)),
        "calm_steps": raised(lambda: program.guarded(calm_steps=0)),
        "second": second,
    }


@scenario
def nothing_is_left():
    """Attributes and hooks of model and optimizer, and of torch, after the guard and an error."""
    program = Program()
    kinds = (nn.Module.__call__, torch.autograd.backward)
    inputs, targets = program.draw()

    def step():
        program.optimizer.zero_grad()
        program.loss(program.model(inputs), targets).backward()
        program.optimizer.step()

    step()
    before = marks(program)
    with contextlib.redirect_stderr(program.said), program.guarded() as guard:
        with Faults([40]):
            step()
        count = guard.num_recoveries
    same_kinds = kinds == (nn.Module.__call__, torch.autograd.backward)
    after = marks(program)
    wrong = [key for key in before if before[key] != after.get(key) and key[1] != "num_calls"]
    return [count, [str(key) for key in wrong], same_kinds]


@scenario
def the_guard_goes_back_up():
    """After three steps without an error."""
    program, rungs = Program(), []
    with contextlib.redirect_stderr(program.said), program.guarded(calm_steps=3) as guard:
        for number in range(8):
            inputs, targets = program.draw()
            with Faults([40]) if number == 1 else contextlib.nullcontext():
                loss = program.loss(program.model(inputs), targets)
            loss.backward()
            program.optimizer.step()
            rungs.append(guard.rung)
    return rungs


@scenario
def the_rung_of_all_ranks():
    """Two ranks on one store: who fails, who hears of it, and when both go back up."""
    store = torch.distributed.HashStore()
    first, second = (SharedRung(rank, store, 2, "test", 0.0) for rank in range(2))
    rungs = []

    def look():
        for each in (first, second):
            each.poll()
        rungs.append([first.rung, second.rung, first.last_rank, second.last_rank])

    first.fail(1)
    look()
    second.fail(2)
    first.fail(2)  # has not heard of it yet
    look()
    first.be_calm()
    first.be_calm()
    look()
    second.be_calm()
    look()
    first.be_calm()
    second.fail(3)
    second.be_calm()  # the first was calm before that error
    look()
    first.be_calm()
    look()
    lost = SharedRung(0, None, 2, "test", 0.0)
    lost._store = Gone()
    with contextlib.redirect_stderr(io.StringIO()) as said:
        lost.fail(1)
        lost.poll()
        lost.be_calm()
    return [rungs, lost.is_lost, said.getvalue().count("rungs are not shared")]


class Reducing(ConvNet):
    """Has a collective of its own, as SyncBatchNorm."""

    def forward(self, images):
        """Logits."""
        logits = super().forward(images)
        torch.distributed.all_reduce(logits.detach().clone())
        return logits


@scenario
def what_is_refused_under_ddp():
    """A group of one rank has DDP's reducer, too."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )

    def train(prepare=lambda _: None, make=ConvNet, **options):
        program = Program(make)
        program.model = nn.parallel.DistributedDataParallel(program.model, **options)
        prepare(program.model)
        with contextlib.redirect_stderr(program.said), program.guarded():
            error = raised(lambda: train_once(program))
        return [error, program.said.getvalue()]

    def hook(_, bucket):
        fail()

    def fail_in_forward(model):
        model.module.register_forward_hook(once(fail))  # after the collective

    answers = {
        "hook": train(lambda model: model.register_comm_hook(None, hook)),
        "collectives": train(make=Reducing),
        "collectives and error": train(fail_in_forward, Reducing),
        "static": raised(lambda: train(static_graph=True)),
        "within": raised(lambda: ullage.guard_model(nn.Sequential(
            nn.parallel.DistributedDataParallel(nn.Linear(2, 2))), Program().optimizer)),
    }  # fmt: skip
    torch.distributed.destroy_process_group()
    return answers


class Gone:
    """A store whose server has ended."""

    def __getattr__(self, name):
        raise torch.distributed.DistNetworkError("gone")


@scenario
def a_decorated_step():
    """A function whose calls are steps of a guard."""
    program, said = Program(), io.StringIO()

    @ullage.guard(program.model, program.optimizer)
    def train_step(batch, *, scale=1.0):
        """A step."""
        loss = program.loss(program.model(batch[0]), batch[1]) * scale
        loss.backward()
        program.optimizer.step()
        return loss.item()

    batch = program.draw()
    with contextlib.redirect_stderr(said):
        with Faults([40]):
            loss = train_step(batch, scale=0.0)
        is_open = train_step.guard.is_open
        train_step.close()
        train_step.close()
    is_closed = not train_step.guard.is_open
    return [train_step.__doc__, loss, program.num_losses, is_open, is_closed,
            said.getvalue().splitlines()[-1]]  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    names = sys.argv[1:] or SCENARIOS
    print(json.dumps({name: SCENARIOS[name]() for name in names}))
