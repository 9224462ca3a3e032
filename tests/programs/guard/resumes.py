"""Trains as scripts do that know nothing of a guard, and goes on from its own checkpoints.

resumes.py KIND DIRECTORY [--resume] [--fail|--wait|--helper]

KIND is plain, ddp, transformers or lightning. The third batch is long. After each step there is a
checkpoint in DIRECTORY, and with --resume it goes on from the last one. In the third step it raises
with --fail an error of its own, about one of memory, and with --wait it waits to be asked to end.
With --helper it starts a process, whose number is in DIRECTORY, and leaves it. The last line of
rank 0 is a document: the weights at the end, and the steps that this process has done.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

KIND, DIRECTORY = sys.argv[1], Path(sys.argv[2])
RESUMES, FAILS, WAITS = ("--resume" in sys.argv, "--fail" in sys.argv, "--wait" in sys.argv)
IS_ON_GPU = KIND == "plain" and torch.cuda.is_available()
STEPS, LONG, SHORT = 5, 96 * 20_000 if IS_ON_GPU else 96, 8
RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
DONE = []


class Block(nn.Module):
    """A layer with a residual and dropout, which draws."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(self.down(self.up(x).tanh()))


class Network(nn.Module):
    """Blocks, and the mean square of what comes out."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x, labels=None):
        for block in self.blocks:
            x = block(x)
        return {"loss": x.square().mean()}


class Batches(Dataset):
    """Batches, of which the third is long."""

    def __len__(self):
        return STEPS * RANKS

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        length = LONG if index // RANKS == 2 and index % RANKS == RANKS - 1 else SHORT
        if IS_ON_GPU:
            return {"x": torch.randn(length, 16, device="cuda")}
        return {"x": torch.randn(length, 16, generator=generator)}


def note_step(step):
    """Called in each step."""
    DONE.append(step)
    if FAILS and step == 2:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        except torch.OutOfMemoryError:
            raise ValueError("the program's own")  # noqa: B904
    if WAITS and step == 2:
        signal.signal(signal.SIGTERM, lambda *_: (Path(DIRECTORY, "asked").touch(), sys.exit(7)))
        note_process("waits", os.getpid())
        time.sleep(600)


def note_process(name, number):
    """Writes the number of a process to a file, whole."""
    path = DIRECTORY / f"{name}-{RANK}-{os.getpid()}.pid"
    path.with_suffix(".new").write_text(str(number))
    path.with_suffix(".new").replace(path)


def last_checkpoint():
    """The last one, and the number of its step."""
    paths = sorted(DIRECTORY.glob("step-*.pt"))
    return torch.load(paths[-1], map_location="cpu") if paths and RESUMES else None


def plain():
    """A loop, alone or under DistributedDataParallel."""
    model = wrapped = Network().to("cuda" if IS_ON_GPU else "cpu")
    if KIND == "ddp":
        torch.distributed.init_process_group("gloo")
        wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first, checkpoint = 0, last_checkpoint()
    if checkpoint is not None:
        first = checkpoint["step"]
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        torch.set_rng_state(checkpoint["generator"])
    batches = Batches()
    for step in range(first, STEPS):
        note_step(step)
        wrapped(batches[step * RANKS + RANK]["x"])["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        if RANK == 0:
            state = {
                "step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict(),
                "generator": torch.get_rng_state(),
            }  # fmt: skip
            path = DIRECTORY / f"step-{step + 1}.pt"
            torch.save(state, path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)
        if KIND == "ddp":
            torch.distributed.barrier()
    return model


def transformers():
    """transformers' Trainer."""
    from transformers import Trainer, TrainingArguments

    class Noting(Trainer):
        def training_step(self, *arguments, **keywords):
            note_step(self.state.global_step)
            return super().training_step(*arguments, **keywords)

        def get_train_dataloader(self):
            return DataLoader(Batches(), 1, collate_fn=lambda rows: rows[0])

    arguments = TrainingArguments(
        output_dir=str(DIRECTORY), max_steps=STEPS, disable_tqdm=True, save_strategy="steps",
        save_steps=1, report_to="none", use_cpu=True, remove_unused_columns=False,
    )  # fmt: skip
    model = Network()
    Noting(model, arguments, train_dataset=Batches()).train(resume_from_checkpoint=RESUMES)
    return model


def lightning():
    """Lightning's Trainer."""
    import lightning as L
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Network()

        def training_step(self, batch, _):
            note_step(self.global_step)
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    module = Module()
    keeps = ModelCheckpoint(DIRECTORY, "{step}", every_n_train_steps=1, save_top_k=-1)
    paths = sorted(DIRECTORY.glob("step=*.ckpt"))
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_steps=STEPS, logger=False, callbacks=[keeps],
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    batches = DataLoader(Batches(), 1, collate_fn=lambda rows: rows[0])
    trainer.fit(module, batches, ckpt_path=paths[-1] if RESUMES else None)
    return module.model


def main():
    """Trains, and prints what came of it."""
    torch.set_num_threads(1)
    torch.manual_seed(1 + RANK)
    if "--helper" in sys.argv:
        words = [sys.executable, "-c", "import time; time.sleep(600)"]
        note_process("helper", subprocess.Popen(words).pid)
    model = {"transformers": transformers, "lightning": lightning}.get(KIND, plain)()
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.cpu().numpy().tobytes())
    if RANK == 0:
        print(json.dumps({"digest": digest.hexdigest(), "steps": DONE}))


main()
