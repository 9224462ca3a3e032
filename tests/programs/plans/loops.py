"""Trains a stack of blocks in the way that is asked for: `loops.py WAY,... [DEVICE]`.

Prints for each the sum of the losses, and how often a linear layer ran; it is not counted under the
compiler, which would stop there.
"""

import contextlib
import copy
import json
import sys
import tempfile

import torch
from blocks import Stack, batch, counted_calls
from torch import nn

STEPS = 3


def plain(device):
    """A loop."""
    model = Stack().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    return [step(model, optimizer, device) for _ in range(STEPS)]


def step(model, optimizer, device):
    """One step of a loop."""
    optimizer.zero_grad()
    loss = model(batch(device)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def evaluates_first(device):
    """Calls the model before there is an optimizer, and without gradients after."""
    model = Stack().to(device)
    model(batch(device))
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.no_grad():
        model.eval()(batch(device))
    model.train()
    return [step(model, optimizer, device) for _ in range(STEPS)]


def compiled(device):
    """torch.compile, evaluated once before training."""
    model = torch.compile(Stack().to(device), backend="aot_eager", fullgraph=True)
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.no_grad():
        model(batch(device))
    return [step(model, optimizer, device) for _ in range(STEPS)]


def compiled_in_place(device):
    """Module.compile of each block."""
    model = Stack().to(device)
    for block in model.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    optimizer = torch.optim.AdamW(model.parameters())
    return [step(model, optimizer, device) for _ in range(STEPS)]


def ddp(device):
    """DistributedDataParallel of one rank."""
    with one_rank(device):
        model = nn.parallel.DistributedDataParallel(Stack().to(device))
        optimizer = torch.optim.AdamW(model.parameters())
        return [step(model, optimizer, device) for _ in range(STEPS)]


def fsdp(device):
    """FSDP2 of one rank."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with one_rank(device):
        mesh = init_device_mesh(device, (1,))
        model = Stack().to(device)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        return [step(model, optimizer, device) for _ in range(STEPS)]


@contextlib.contextmanager
def one_rank(device):
    """A process group of this process alone."""
    with tempfile.TemporaryDirectory() as directory:
        torch.distributed.init_process_group(
            "nccl" if device == "cuda" else "gloo",
            init_method=f"file://{directory}/store", rank=0, world_size=1,
        )  # fmt: skip
        yield
        torch.distributed.destroy_process_group()


def with_accelerate(device):
    """Accelerate, in bf16."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=device == "cpu", mixed_precision="bf16")
    model = Stack()
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch(accelerator.device)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    return losses


def with_trainer(device):
    """transformers' Trainer, which looks at the signature of the forward."""
    from transformers import Trainer, TrainingArguments

    rows = [{"x": torch.randn(64), "labels": torch.randn(64)} for _ in range(4 * STEPS)]
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            directory, max_steps=STEPS, per_device_train_batch_size=4, report_to=[],
            use_cpu=device == "cpu", save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(Stack(), arguments, train_dataset=rows)
        return [trainer.train().training_loss]


def with_lightning(_device):
    """Lightning, whose module holds the model."""
    import lightning

    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Stack()

        def training_step(self, x, _):
            loss = self.model(x).square().mean()
            losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    losses = []
    trainer = lightning.Trainer(
        max_steps=STEPS, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Task(), torch.utils.data.DataLoader(torch.randn(STEPS * 8, 64), batch_size=8))
    return losses


def adversaries(device):
    """Another model is trained too, and called first."""

    class Critic(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(64, 1)

        def forward(self, x):
            return self.head(x)

    critic, model = Critic().to(device), Stack().to(device)
    for_critic = torch.optim.AdamW(critic.parameters())
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(STEPS):
        for_critic.zero_grad()
        critic(batch(device)).mean().backward()
        for_critic.step()
        losses.append(step(lambda x: critic(model(x)), optimizer, device))
    return losses


def folds(device):
    """A new model and optimizer for each of two folds."""
    return plain(device) + plain(device)


def averaged(device):
    """A copy of the model, made under the plan, is an average of its weights."""
    model = Stack().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = [step(model, optimizer, device)]
    average = copy.deepcopy(model)
    for parameter in average.parameters():
        parameter.data.zero_()
    x = batch(device)
    output = average(x)
    assert device != "cpu" or torch.equal(output, x), "the copy runs on the parameters of the model"
    return losses


def saved_whole(device):
    """The model is saved as an object, and loaded."""
    model = Stack().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = [step(model, optimizer, device)]
    with tempfile.TemporaryDirectory() as directory:
        torch.save(model, f"{directory}/model.pt")
        loaded = torch.load(f"{directory}/model.pt", weights_only=False).eval()
    x = batch(device)
    assert torch.equal(loaded(x), model.eval()(x))
    return losses


def calls_parts(device):
    """The model is never called, its blocks are."""
    model = Stack().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(STEPS):
        x = batch(device)
        for block in model.blocks:
            x = block(x)
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def catches_all(device):
    """Goes on after whatever happens."""
    losses = []
    for _ in range(STEPS):
        try:
            losses += plain(device)
        except Exception as error:
            print(f"caught {type(error).__name__}", flush=True)
    return losses


class Counts(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x


def counts(device):
    """Trains a block that changes a buffer, which it would do twice if it ran again."""
    model = Stack().to(device)
    model.blocks[0].dropout = Counts().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    return [step(model, optimizer, device)]


def catches_counts(device):
    """The same, and goes on after whatever happens."""
    try:
        return counts(device)
    except Exception as error:
        print(f"caught {type(error).__name__}", flush=True)
        return []


def several_processes(device):
    """Trains in a child, as torchrun does."""
    import subprocess

    subprocess.run([sys.executable, __file__, "plain", device], check=True)
    return []


def late_optimizer(device):
    """Makes its optimizer anew in each step."""
    model = Stack().to(device)
    return [step(model, torch.optim.SGD(model.parameters(), lr=0.1), device) for _ in range(STEPS)]


def replicated(device):
    """DataParallel."""
    model = nn.DataParallel(Stack().to(device))
    optimizer = torch.optim.AdamW(model.parameters())
    return [step(model, optimizer, device) for _ in range(STEPS)]


def untrained(device):
    """No training."""
    Stack().to(device)(batch(device))
    return []


def main():
    """Trains in the ways that were asked for, one after another."""
    ways, device = sys.argv[1].split(","), (sys.argv[2:] or ["cpu"])[0]
    torch.set_num_threads(1)
    for way in ways:
        torch.manual_seed(0)
        with counted_calls(is_on="compiled" not in way) as calls:
            losses = globals()[way](device)
        print(json.dumps({"way": way, "losses": losses, "calls": len(calls)}), flush=True)


if __name__ == "__main__":
    main()
