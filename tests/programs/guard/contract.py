"""What a guard restores, counts and refuses, on the CPU; prints an answer a scenario."""

import contextlib
import gc
import io
import json
import sys

import torch
from torch import nn
from training import ConvNet, Faults, differences, unseen

import ullage
from ullage.act.guard.ladder import choose_plans
from ullage.act.techniques.applying.apply import describe_program
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action
from ullage.ground.errors import GuardError, PlanError, SpecError

SCENARIOS = {}


def scenario(function):
    """Enters a scenario."""
    SCENARIOS[function.__name__] = function
    return function


def fail():
    """What an allocation that does not fit raises."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def raised(call):
    """The kind and the text of what a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


class Program:
    """A model, its optimizer, and a step with a place for an error in each of its parts."""

    def __init__(self, make=None):
        torch.manual_seed(1)
        self.model = ConvNet()
        make = make or (lambda parameters: torch.optim.AdamW(parameters, lr=1e-2))
        self.optimizer = make(self.model.parameters())
        calls = {"draw": 0, "loss": 0, "fn": 0, "before": 0, "after": 0}
        self.outside = unseen(errors={}, calls=calls)

    @property
    def calls(self):
        """How often each part has run."""
        return self.outside.calls

    @property
    def errors(self):
        """What is called once at a place."""
        return self.outside.errors

    @errors.setter
    def errors(self, errors):
        self.outside.errors = errors

    def draw(self):
        """A batch."""
        self.calls["draw"] += 1
        return torch.randn(2, 3, 8, 8), torch.randint(5, (2,))

    def at(self, place):
        """Calls what stands for a place, once."""
        self.errors.pop(place, lambda: None)()

    def loss(self, batch):
        """The mean loss."""
        self.calls["loss"] += 1
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def fn(self, batch):
        """A training step."""
        self.calls["fn"] += 1
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        self.at("forward")
        loss.backward()
        self.at("backward")
        self.optimizer.step()
        self.at("end")
        return loss.detach()

    def state(self):
        """Model and optimizer."""
        return {
            **{name: each.clone() for name, each in self.model.state_dict().items()},
            **{
                f"{index} {name}": each.clone()
                for index, state in enumerate(self.optimizer.state.values())
                for name, each in state.items()
            },
            "calls": self.model.num_calls,
        }


def marks(program):
    """All attributes and hooks of the model, its parameters and the optimizer."""
    notes = {"optimizer": {key: id(value) for key, value in vars(program.optimizer).items()}}
    for name, hooks in vars(program.optimizer).items():
        if name.endswith("hooks"):
            notes["hooks", name] = list(hooks)
    for path, module in program.model.named_modules():
        for name, value in vars(module).items():
            is_container = isinstance(value, dict)
            notes[path, name] = list(value) if is_container else id(value)
    for name, parameter in program.model.named_parameters():
        hooks = parameter._backward_hooks, getattr(parameter, "_post_accumulate_grad_hooks", None)
        notes["parameter", name] = [len(each or ()) for each in hooks]
    return notes


@scenario
def counters():
    """How often each part has run for a step that fails in forward, and in the optimizer."""
    program = Program()
    program.optimizer.register_step_pre_hook(lambda *_: count(program, "before"))
    program.optimizer.register_step_post_hook(lambda *_: count(program, "after"))
    with ullage.guard(program.model, program.optimizer) as guard:
        program.errors["forward"] = fail
        guard.step(program.fn, program.draw())
        first = dict(program.calls)
        batch = program.draw()
        original = program.optimizer.step

        def step():
            with Faults([3]):
                original()

        program.optimizer.step = step
        guard.step(program.fn, batch)
        program.optimizer.step = original
        return {
            "first": first, "second": dict(program.calls), "calls": program.model.num_calls,
            "recoveries": guard.num_recoveries,
            "steps": [int(state["step"]) for state in program.optimizer.state.values()][:1],
        }  # fmt: skip


def count(program, name):
    """A hook that counts."""
    program.calls[name] += 1


@scenario
def nothing_is_left():
    """Attributes and hooks before and after, with a rung applied when the guard ends."""
    program = Program()
    torch.optim.lr_scheduler.StepLR(program.optimizer, 1)
    program.fn(program.draw())
    before = marks(program)
    step = program.optimizer.step
    with ullage.guard(program.model, program.optimizer) as guard:
        program.errors["forward"] = fail
        guard.step(program.fn, program.draw())
        rung = guard.rung
    after = marks(program)
    left = [str(key) for key in before if before[key] != after.get(key)]
    left = [key for key in left if "num_calls" not in key and "buffers" not in key]
    return [rung, left, program.optimizer.step == step]


@scenario
def nothing_is_left_after_an_error():
    """The same when the program raises an error of its own."""
    program = Program()
    before = marks(program)

    def broken(_):
        raise ValueError("no such row")

    def train():
        with ullage.guard(program.model, program.optimizer) as guard:
            guard.step(broken, None)

    return [raised(train), before == marks(program)]


@scenario
def a_parameter_is_changed():
    """Weights that are clipped before the error."""
    program = Program()

    def clip_and_fail():
        with torch.no_grad():
            program.model.head.weight.clamp_(-0.1, 0.1)
        fail()

    program.errors["forward"] = clip_and_fail
    return refused(program)


@scenario
def a_list_grows():
    """A list of a module that the step appends to."""
    program = Program()
    program.model.history = []

    def note_and_fail():
        program.model.history.append(1)
        fail()

    program.errors["forward"] = note_and_fail
    return [refused(program), program.model.history]


@scenario
def an_attribute_is_new():
    """An attribute that the failed try has added is removed before the second."""
    program = Program()
    seen = []

    def add_and_fail():
        program.model.cache = torch.ones(1)
        program.model.register_buffer("late", torch.ones(1))
        program.errors["forward"] = lambda: seen.append(
            (hasattr(program.model, "cache"), hasattr(program.model, "late"))
        )
        fail()

    program.errors["forward"] = add_and_fail
    return [refused(program), seen]


@scenario
def flags_are_turned():
    """A step that turns modules to evaluation and a parameter off before it fails."""
    program = Program()
    seen = []

    def turn_and_fail():
        program.model.eval()
        program.model.stem.weight.requires_grad_(False)
        program.errors["forward"] = lambda: seen.append(
            (program.model.blocks[0].norm.training, program.model.stem.weight.requires_grad)
        )
        fail()

    program.errors["forward"] = turn_and_fail
    return [refused(program), seen]


@scenario
def a_large_buffer():
    """A buffer of 4 MiB: copied before the first step, and once a step has written to it."""
    answers = []
    for num_calm, num_written in ((0, 0), (2, 0), (2, 1), (2, 2)):
        program = Program()
        program.model.register_buffer("table", torch.zeros(1 << 20))

        def write(program=program):
            program.model.table.add_(1)

        def write_and_fail(write=write, program=program):
            write()
            program.errors["forward"] = write
            fail()

        with ullage.guard(program.model, program.optimizer) as guard:
            for _ in range(num_calm):
                guard.step(program.fn, program.draw())
            for _ in range(num_written):
                program.errors["forward"] = write
                guard.step(program.fn, program.draw())
            program.errors["forward"] = write_and_fail
            text = raised(lambda: guard.step(program.fn, program.draw()))  # noqa: B023
        answers.append([text.partition(":")[0], program.model.table[0].item()])
    return answers


@scenario
def two_steps_of_an_optimizer():
    """A function that steps a fused optimizer, and fails in its second step."""
    program = Program(lambda parameters: torch.optim.AdamW(parameters, fused=True))

    def fn(batch):
        program.fn(batch)
        program.optimizer.state.clear()
        with Faults([2]):
            program.fn(batch)

    with ullage.guard(program.model, program.optimizer) as guard:
        return raised(lambda: guard.step(fn, program.draw()))


@scenario
def a_plan_for_another_program():
    """Refused when the guard begins, not when it is needed."""
    program, other = Program(), Program()
    other.model.head = nn.Linear(4, 6)
    plans = choose_plans(other.model, other.optimizer)

    def begin():
        with ullage.guard(program.model, program.optimizer, plans=plans):
            pass

    return raised(begin)


@scenario
def an_error_after_the_optimizer():
    """What follows the optimizer's step is not run again."""
    program = Program()
    program.errors["end"] = fail
    return refused(program)


@scenario
def an_optimizer_of_ones_own():
    """A class outside torch.optim that fails within its step; named when the guard begins."""

    class Own(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for index, parameter in enumerate(group["params"]):
                    parameter.data.add_(parameter.grad, alpha=-0.1)
                    if index == 1:
                        fail()

    program = Program(Own)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        answer = refused(program)
    return [answer, "not recovered: Own is not one of torch.optim" in said.getvalue()]


@scenario
def a_fused_sgd():
    """Of two dtypes in a group, for which it is called twice; nothing says how often it was."""
    program = Program(lambda parameters: torch.optim.SGD(parameters, momentum=0.9, fused=True))
    extra = nn.Parameter(torch.ones(2, dtype=torch.float64))
    program.optimizer.param_groups[0]["params"].append(extra)
    extra.grad = torch.ones_like(extra)
    with ullage.guard(program.model, program.optimizer) as guard:
        program.errors["backward"] = lambda: setattr(program, "faults", Faults([2]).__enter__())
        try:
            return raised(lambda: guard.step(program.fn, program.draw()))
        finally:
            program.faults.__exit__(None, None, None)


@scenario
def no_rung_is_left():
    """The error of the program, the rungs, and the state as before."""
    program = Program()
    program.fn(program.draw())
    before = program.state()
    random_state = torch.get_rng_state()
    batch = program.draw()
    torch.set_rng_state(random_state)

    def always(batch):
        program.loss(batch).backward()
        torch.rand(1)
        fail()

    program.optimizer.zero_grad()
    with ullage.guard(program.model, program.optimizer) as guard:
        text = raised(lambda: guard.step(always, batch))
    is_same = torch.equal(torch.get_rng_state(), random_state)
    gradients = [each.grad for each in program.model.parameters() if each.grad is not None]
    return [text, differences(program.state(), before), is_same, len(gradients)]


@scenario
def a_gradient_is_read_and_freed():
    """A step that uses the sum of earlier micro-batches, frees it, and fails."""
    program = Program()
    program.loss(program.draw()).backward()

    def fn(batch):
        norm = program.model.head.weight.grad.norm()
        program.optimizer.zero_grad()
        loss = program.loss(batch) * norm
        program.at("forward")
        loss.backward()

    program.errors["forward"] = fail
    with ullage.guard(program.model, program.optimizer) as guard:
        text = raised(lambda: guard.step(fn, program.draw()))
    is_stand_in = [each.grad is not None and each.grad.stride() == (0,) * each.dim()
                   for each in program.model.parameters() if each.dim()]  # fmt: skip
    return [text, any(is_stand_in)]


@scenario
def gradients_are_zeroed_in_place():
    """`zero_grad(set_to_none=False)` within the step, then an error in backward."""
    answers = []
    for place in ("forward", "backward"):
        ends = []
        for error in (lambda: None, fail):
            program = Program()
            program.loss(program.draw()).backward()
            batch = program.draw()

            def fn(batch, program=program):
                program.optimizer.zero_grad(set_to_none=False)
                loss = program.loss(batch)
                program.at("forward")
                loss.backward()
                program.at("backward")
                program.optimizer.step()

            program.errors[place] = error
            with ullage.guard(program.model, program.optimizer) as guard:
                guard.step(fn, batch)
            ends.append(program.state())
        answers.append(differences(*ends))
    return answers


@scenario
def a_scheduler_is_extra():
    """A scheduler that the step moves before it fails."""
    program = Program()
    scheduler = torch.optim.lr_scheduler.StepLR(program.optimizer, 1, gamma=0.5)
    program.optimizer.step()

    def fn(batch):
        scheduler.step()
        return program.fn(batch)

    program.errors["forward"] = fail
    with ullage.guard(program.model, program.optimizer, extra=[scheduler]) as guard:
        guard.step(fn, program.draw())
    return scheduler.last_epoch


@scenario
def a_copy_of_the_weights_is_extra():
    """An average of the weights that the step changes in place before it fails."""
    program = Program()
    average = torch.optim.swa_utils.AveragedModel(program.model)

    def change_and_fail():
        average.update_parameters(program.model)
        average.update_parameters(program.model)
        fail()

    program.errors["forward"] = change_and_fail
    with ullage.guard(program.model, program.optimizer, extra=[average]) as guard:
        return raised(lambda: guard.step(program.fn, program.draw()))


@scenario
def the_guard_goes_back_up():
    """After three calm steps to rung 0; the next error at once doubles that."""
    program = Program()
    rungs = []
    with ullage.guard(program.model, program.optimizer, calm_steps=3) as guard:
        for number in range(12):
            if number in (0, 4):
                program.errors["forward"] = fail
            guard.step(program.fn, program.draw())
            rungs.append(guard.rung)
    return rungs


@scenario
def other_rungs():
    """Each technique that can be a rung."""
    answers = {}
    for technique, settings in (
        ("selective_checkpoint", {"saves": "matmul"}),
        ("offload_activations", {"least_kib": 0}),
    ):
        ends = []
        for error in (lambda: None, fail):
            program = Program()
            blocks = choose_plans(program.model, program.optimizer)[-1].actions[0].modules
            plan = Plan(
                (Action(technique, blocks, settings),),
                describe_program(program.model, program.optimizer, blocks),
            )
            program.errors["backward"] = error
            with ullage.guard(program.model, program.optimizer, plans=[plan]) as guard:
                guard.step(program.fn, program.draw())
                guard.step(program.fn, program.draw())
            ends.append(program.state())
        answers[technique] = differences(*ends)
    return answers


@scenario
def a_batch_is_changed():
    """A batch that the step normalises in place before it fails, within a dict; and a large tensor
    beside it, which an earlier step has left as it was.
    """
    program = Program()
    images, targets = program.draw()
    table = torch.zeros(1 << 20)

    def fn(batch, *, scale, amount=0):
        batch["images"].mul_(scale)
        if amount:
            batch["table"].add_(amount)
        return program.fn((batch["images"], batch["targets"]))

    with ullage.guard(program.model, program.optimizer) as guard:
        batch = {"images": images, "targets": targets, "table": table}
        before = images.clone()
        program.errors["forward"] = fail
        text = raised(lambda: guard.step(fn, batch, scale=0.5))
        is_once = torch.equal(images, before * 0.5)
        guard.step(fn, batch, scale=1.0)
        program.errors["forward"] = fail
        return [text, is_once, raised(lambda: guard.step(fn, batch, scale=0.5, amount=1))]


@scenario
def functions_that_have_not_run():
    """A generator and an async function as steps, by the decorator and by the guard."""
    program = Program()

    def generator(batch):
        yield program.fn(batch)

    async def coroutine(batch):
        return program.fn(batch)

    with ullage.guard(program.model, program.optimizer) as guard:
        return [raised(lambda: guard(each)) for each in (generator, coroutine)] + [  # noqa: B023
            raised(lambda: guard.step(each, None))  # noqa: B023
            for each in (generator, coroutine)
        ]


@scenario
def what_ended_a_recovery():
    """The causes of errors that end a second try: one of the program's own, and a refusal."""
    causes = []
    for place in ("forward", "weights"):
        program = Program()

        def fail_then_break(program=program, place=place):
            program.errors["forward"] = lambda: int("no number")
            if place == "weights":
                program.model.head.weight.data = program.model.head.weight.data * 2
            fail()

        program.errors["forward"] = fail_then_break
        with ullage.guard(program.model, program.optimizer) as guard:
            try:
                guard.step(program.fn, program.draw())
            except Exception as error:
                causes.append([type(error).__name__, str(error.__cause__)])
    return causes


@scenario
def without_rungs():
    """A step that is run once more as it is, and one that fails twice."""
    program = Program()
    with ullage.guard(program.model, program.optimizer, plans=[]) as guard:
        program.errors["backward"] = fail
        guard.step(program.fn, program.draw())
        text = raised(lambda: guard.step(lambda: fail()))
    return [guard.num_recoveries, guard.rung, text]


@scenario
def other_words():
    """Errors of libraries, and those that are about something else."""
    messages = {
        "driver": "CUDA error: out of memory",
        "cuBLAS": "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "no engine": "GET was unable to find an engine to execute this computation",
        "host": "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.",
    }
    answers = {}
    for name, message in messages.items():

        def complain(message=message):
            raise RuntimeError(message)

        program = Program()
        with ullage.guard(program.model, program.optimizer, plans=[]) as guard:
            program.errors["backward"] = complain
            text = raised(
                lambda program=program, guard=guard: guard.step(program.fn, program.draw())
            )
        answers[name] = [guard.num_recoveries, text]
    return answers


@scenario
def what_is_no_guard():
    """What is refused before a step is run."""
    program = Program()
    model, optimizer = program.model, program.optimizer
    made_for = describe_program(model, optimizer, ())
    plan = Plan((Action("free_gradients"),), made_for)
    compiled = nn.Sequential(model)
    compiled.compile()
    closed = ullage.guard(model, optimizer)
    with contextlib.redirect_stderr(io.StringIO()), closed:
        within = raised(lambda: closed.step(lambda: closed.step(lambda: None)))
    return {
        "technique": raised(lambda: ullage.guard(model, optimizer, plans=[plan])),
        "compiled": raised(lambda: ullage.guard(compiled, optimizer)),
        "calm_steps": raised(lambda: ullage.guard(model, optimizer, calm_steps=0)),
        "blocks": raised(lambda: ullage.guard(nn.Linear(1, 1), optimizer)),
        "closed": raised(lambda: closed.step(lambda: None)),
        "within": within,
        "kinds": [each.__name__ for each in (GuardError, PlanError, SpecError)],
    }


@scenario
def a_decorated_step():
    """A function whose calls are steps of a guard."""
    program, said = Program(), io.StringIO()

    @ullage.guard(program.model, program.optimizer)
    def train_step(batch, *, scale=1.0):
        """A step."""
        loss = program.loss(batch) * scale
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
    return [train_step.__doc__, loss, program.calls["loss"], is_open, is_closed,
            said.getvalue().splitlines()[-1]]  # fmt: skip


def refused(program):
    """What a guarded step raises."""
    with ullage.guard(program.model, program.optimizer) as guard:
        return raised(lambda: guard.step(program.fn, program.draw()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.freeze()
    names = sys.argv[1:] or SCENARIOS
    print(json.dumps({name: SCENARIOS[name]() for name in names}))
