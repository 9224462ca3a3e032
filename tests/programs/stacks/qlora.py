"""QLoRA: a base in 4 bits of bitsandbytes, adapters of peft, a paged optimizer in 8 bits."""

import tempfile

import torch
from figures import print_figures
from made_up import Tokens, small_llama
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

STEPS = 3


def main() -> None:
    """A checkpoint of random weights is saved, loaded in 4 bits, and trained for three steps."""
    in_4_bits = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    with tempfile.TemporaryDirectory() as directory:
        LlamaForCausalLM(small_llama()).to(torch.bfloat16).save_pretrained(directory)
        base = AutoModelForCausalLM.from_pretrained(
            directory, quantization_config=in_4_bits, dtype=torch.bfloat16, device_map={"": 0}
        )
        model = get_peft_model(
            prepare_model_for_kbit_training(base), LoraConfig(r=16, target_modules="all-linear")
        )
        arguments = TrainingArguments(
            output_dir=directory,
            max_steps=STEPS,
            per_device_train_batch_size=4,
            bf16=True,
            optim="paged_adamw_8bit",
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
