"""LoRA with peft, trained by transformers.Trainer."""

import tempfile

import torch
from figures import print_figures
from made_up import Tokens, small_llama
from peft import LoraConfig, get_peft_model
from transformers import LlamaForCausalLM, Trainer, TrainingArguments

STEPS = 3


def main() -> None:
    """Three steps."""
    model = get_peft_model(
        LlamaForCausalLM(small_llama()).to(torch.bfloat16),
        LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules="all-linear"),
    )
    model.print_trainable_parameters()
    with tempfile.TemporaryDirectory() as output_dir:
        arguments = TrainingArguments(
            output_dir=output_dir,
            max_steps=STEPS,
            per_device_train_batch_size=4,
            bf16=True,
            logging_steps=1,
            disable_tqdm=True,
            save_strategy="no",
            report_to="none",
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(4 * STEPS, 512))
        trainer.train()
    print_figures(model, trainer.optimizer.optimizer, num_steps=STEPS)


if __name__ == "__main__":
    main()
