"""Trains as scripts do that know nothing of a guard, and fails at some of the operations.

unmodified.py LOOP EVERY [callbacks]    LOOP: plain, transformers, lightning or accelerate

Run it under `ullage exec --guard`, or with "callbacks", which guard it; it fails at every EVERY-th
allocation in turn ("5:12": at the sixth share of about twelve), and compares what is left with the
same training unfailed. The last line of the output is a document: how the trainings ended, of which
the error came within the model's calls, their backward, or the optimizer ("guarded"), and of which
it came in between ("script").
"""

import contextlib
import copy
import gc
import importlib
import json
import os
import random
import sys
import tempfile
from collections import Counter

import torch
from ends import Kind, Run, share_of
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from training import LENGTH, VOCABULARY, Block, Faults

STEPS = 2
HAS_CALLBACKS = "callbacks" in sys.argv
GUARDED = {"model_guard.py": {"_call"}, "optimizer_step.py": {"_step"}}
# In backward.py: what runs the model's part.
PARTS = {"_run_once", "_run_again"}


class Tokens(Dataset):
    """Rows of tokens; it counts how often one is drawn."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.rows = torch.randint(VOCABULARY, (16, LENGTH), generator=generator)
        self.num_draws = 0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        self.num_draws += 1
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Network(nn.Module):
    """A decoder that computes its loss, as those of nanoGPT and transformers do."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.blocks = nn.ModuleList(Block(is_causal=True) for _ in range(2))
        self.head = nn.Linear(16, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.norm = nn.BatchNorm1d(16)

    def forward(self, input_ids, labels):
        """Tokens (batch, LENGTH); logits and loss."""
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        logits = self.head(x)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


class Counts:
    """How often the parts of a script have run."""

    def __init__(self):
        self.num_losses = self.num_steps = 0


def plain(tokens, faults, counts):
    """A loop like nanoGPT's: two micro-batches, clipping, two groups of AdamW, a schedule."""
    model = Network()
    groups = [
        {"params": [each for each in model.parameters() if each.dim() > 1]},
        {"params": [each for each in model.parameters() if each.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    batches = iter(DataLoader(tokens, 4))
    with faults:
        for _ in range(STEPS):
            for _ in range(2):
                batch = next(batches)
                result = model(**batch)
                loss = result["loss"] / 2
                counts.num_losses += 1
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            counts.num_steps += 1
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
    return model, optimizer


def transformers(tokens, faults, counts):
    """transformers' Trainer with a GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            output_dir=directory, max_steps=STEPS, per_device_train_batch_size=4,
            gradient_accumulation_steps=2, disable_tqdm=True, save_strategy="no",
            report_to="none", logging_steps=1, use_cpu=True,
        )  # fmt: skip
        trainer = Trainer(
            model, arguments, train_dataset=tokens, callbacks=callbacks_of("transformers")
        )
        with faults:
            trainer.train()
        counts.num_steps = trainer.state.global_step
    return model, trainer.optimizer.optimizer


def lightning(tokens, faults, counts):
    """Lightning's Trainer, which runs forward and backward in a closure of the optimizer's step."""
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Network()

        def training_step(self, batch, _):
            loss = self.model(**batch)["loss"]
            counts.num_losses += 1
            self.log("loss", loss, on_epoch=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    module = Module()
    num_ranks = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = L.Trainer(
        accelerator="cpu", devices=num_ranks, strategy="ddp" if num_ranks > 1 else "auto",
        max_steps=STEPS, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
        callbacks=callbacks_of("lightning"),
    )  # fmt: skip
    with faults:
        trainer.fit(module, DataLoader(tokens, 4))
    counts.num_steps = trainer.global_step
    return module, trainer.optimizers[0]


def accelerate(tokens, faults, counts):
    """A loop of Accelerate, with its accumulation."""
    from accelerate import Accelerator

    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(tokens, 4))
    with faults, guarded(accelerator):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch)["loss"]
                counts.num_losses += 1
                accelerator.backward(loss)
                optimizer.step()
                counts.num_steps += 1
                optimizer.zero_grad()
    return model, optimizer.optimizer


def callbacks_of(framework):
    """Callbacks of a trainer: one that guards it where "callbacks" is given."""
    if not HAS_CALLBACKS:
        return []
    return [importlib.import_module(f"ullage.callbacks.{framework}").GuardMemory()]


def guarded(accelerator):
    """What is around a loop of Accelerate: a guard where "callbacks" is given."""
    if not HAS_CALLBACKS:
        return contextlib.nullcontext()
    return importlib.import_module("ullage.callbacks.accelerate").guard_prepared(accelerator)


class Watched(Faults):
    """Faults that note whether they come within what is guarded."""

    def __init__(self, numbers=None):
        super().__init__(numbers)
        self.place = "script"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.count + 1 in self.numbers:
            self.place = place_of(sys._getframe())
        return super().__torch_dispatch__(func, types, args, kwargs)


def place_of(frame):
    """ "guarded" where one of the frames is within what the guard runs again."""
    while frame is not None:
        name = frame.f_code.co_filename.rpartition("/")[2]
        if name == "closure.py" and frame.f_code.co_name == "__call__":
            return "script"
        is_part = name == "backward.py" and frame.f_code.co_name in PARTS
        if is_part or frame.f_code.co_name in GUARDED.get(name, ()):
            return "guarded"
        frame = frame.f_back
    return "script"


def train(loop, faults):
    """What is left of a training, with errors at some of its operations."""
    torch.manual_seed(1)
    random.seed(1)
    tokens, counts = Tokens(), Counts()
    model, optimizer = LOOPS[loop](tokens, faults, counts)
    values = {f"model {name}": each for name, each in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        values[f"gradient {name}"] = parameter.grad
        for key, value in optimizer.state.get(parameter, {}).items():
            values[f"state {name} {key}"] = value
    values["torch's generator"] = torch.get_rng_state()
    values["counts"] = [tokens.num_draws, vars(counts)]
    values["settings"] = [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    return Run(copy.deepcopy(values), faults)


def judge(loop, faults, expected):
    """How a training ended; where an error was the script's, in words that are short."""
    end = Kind(lambda _: train(loop, faults)).end_of(faults.numbers.copy(), expected)
    return "out of memory" if end.startswith("the script's own") else end


LOOPS = {each.__name__: each for each in (plain, transformers, lightning, accelerate)}


def main():
    """Runs the sweep."""
    loop, share = sys.argv[1:3]
    torch.set_num_threads(1)
    train(loop, Watched())
    expected, faults, _ = train(loop, Watched())
    gc.freeze()
    results = {"guarded": Counter(), "script": Counter()}
    for number in share_of(faults.allocating, share):
        failing = Watched([number])
        end = judge(loop, failing, expected)
        results[failing.place][end] += 1
    print(json.dumps({"loop": loop, "num_operations": faults.count, "results": results}))


if __name__ == "__main__":
    main()
