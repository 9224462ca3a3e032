"""Trains by a trainer with a guard of its steps, and fails at some of the operations.

trainers.py TRAINER EVERY    TRAINER: transformers or lightning
trainers.py refused          what the callbacks say of trainers whose step cannot be run again

It fails at every EVERY-th allocation in turn ("5:12": at the sixth share of about twelve), and
compares what is left with the same training unfailed. The last line of the output is a document:
how the trainings ended, of which the error came within a guarded step or the optimizer's
("guarded"), and of which in between ("script").
"""

import copy
import gc
import json
import os
import random
import sys
import tempfile
from collections import Counter
from types import SimpleNamespace

import torch
from ends import Kind, Run, share_of
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from training import LENGTH, VOCABULARY, Block, Faults

from ullage.ground.errors import SpecError

STEPS = 2
RUNTIME = os.sep.join(("ullage", "act", "guard"))


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


def transformers(tokens, faults):
    """transformers' Trainer with a GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from ullage.act.callbacks.transformers import GuardMemory

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
        trainer = Trainer(model, arguments, train_dataset=tokens)
        trainer.add_callback(GuardMemory(trainer))
        with faults:
            trainer.train()
    return model, trainer.optimizer.optimizer, trainer.state.global_step


def lightning(tokens, faults):
    """Lightning's Trainer, which runs forward and backward in a closure of the optimizer's step."""
    import lightning as L

    from ullage.act.callbacks.lightning import GuardMemory

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Network()

        def training_step(self, batch, _):
            loss = self.model(**batch)["loss"]
            self.log("loss", loss, on_epoch=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    module = Module()
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_steps=STEPS, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
        accumulate_grad_batches=2, callbacks=[GuardMemory()],
    )  # fmt: skip
    with faults:
        trainer.fit(module, DataLoader(tokens, 4))
    return module, trainer.optimizers[0], trainer.global_step


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
    """ "guarded" where one of the frames is the guard's."""
    while frame is not None:
        if RUNTIME in frame.f_code.co_filename:
            return "guarded"
        frame = frame.f_back
    return "script"


def train(loop, faults):
    """What is left of a training, with errors at some of its operations."""
    torch.manual_seed(1)
    random.seed(1)
    tokens = Tokens()
    model, optimizer, num_steps = LOOPS[loop](tokens, faults)
    values = {f"model {name}": each for name, each in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        values[f"gradient {name}"] = parameter.grad
        for key, value in optimizer.state.get(parameter, {}).items():
            values[f"state {name} {key}"] = value
    values["torch's generator"] = torch.get_rng_state()
    values["counts"] = [tokens.num_draws, num_steps]
    values["settings"] = [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    return Run(copy.deepcopy(values), faults)


def judge(loop, faults, expected):
    """How a training ended; where an error was the script's, in words that are short."""
    end = Kind(lambda _: train(loop, faults)).end_of(faults.numbers.copy(), expected)
    return "out of memory" if end.startswith("the script's own") else end


def refused():
    """The errors of both callbacks under DeepSpeed."""
    from ullage.act.callbacks import lightning, transformers

    loop = SimpleNamespace(epoch_loop=None)
    deepspeed = SimpleNamespace(handles_gradient_accumulation=True)
    trainer = SimpleNamespace(is_deepspeed_enabled=True, strategy=deepspeed, fit_loop=loop)
    starts = {
        "transformers": lambda: transformers.GuardMemory(trainer).on_train_begin(None, None, None),
        "lightning": lambda: lightning.GuardMemory().on_train_start(trainer, None),
    }
    errors = {}
    for name, start in starts.items():
        try:
            start()
        except SpecError as error:
            errors[name] = str(error)
    return errors


LOOPS = {each.__name__: each for each in (transformers, lightning)}


def main():
    """Runs the sweep."""
    if sys.argv[1] == "refused":
        print(json.dumps(refused()))
        return
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
