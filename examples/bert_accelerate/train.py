"""A BERT classifier trained with Accelerate: mixed precision and gradient accumulation.

Only the micro-batch of --batch-size sequences is ever on its way through the model; gradients add
up over --accumulate of them before the optimizer moves. So the memory follows --batch-size, and
--accumulate costs none.

    python examples/bert_accelerate/train.py --batch-size 32 --accumulate 8
    ullage run --gpu t4 -- examples/bert_accelerate/train.py --batch-size 32 --mixed-precision fp16
"""

import argparse

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup


class RandomSequences(Dataset[dict[str, Tensor]]):
    """Made-up text of random length, padded to the same, in two classes."""

    def __init__(self, num_sequences: int, seq_len: int, vocab_size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (num_sequences, seq_len)
        self.ids = torch.randint(1, vocab_size, shape, generator=generator)
        lengths = torch.randint(seq_len // 2, seq_len + 1, (num_sequences, 1), generator=generator)
        self.mask = (torch.arange(seq_len) < lengths).long()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids, mask = self.ids[index], self.mask[index]
        return {"input_ids": ids * mask, "attention_mask": mask, "labels": ids[0] % 2}


def main() -> None:
    """Train for a few steps of the optimizer; one line per step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch-size", type=int, default=16, help="sequences at a time")
    parser.add_argument("--accumulate", type=int, default=4, help="batches in a step")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--mixed-precision", choices=("no", "fp16", "bf16"), default="bf16")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=5e-5)
    args = parser.parse_args()

    torch.manual_seed(0)
    accelerator = Accelerator(
        mixed_precision=args.mixed_precision, gradient_accumulation_steps=args.accumulate
    )
    config = BertConfig()  # bert-base: 12 layers of 768
    num_sequences = args.steps * args.accumulate * args.batch_size
    dataset = RandomSequences(num_sequences, args.seq_len, config.vocab_size)
    model = BertForSequenceClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, args.steps)
    model, optimizer, loader, schedule = accelerator.prepare(
        model, optimizer, DataLoader(dataset, args.batch_size, pin_memory=True), schedule
    )
    step = 0
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            print(f"step {step}  loss {loss.item():.4f}", flush=True)
            step += 1


if __name__ == "__main__":
    main()
