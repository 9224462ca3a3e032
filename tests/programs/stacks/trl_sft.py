"""TRL's SFTTrainer on texts in memory, with packing and a tokenizer made on the spot."""

import tempfile

from datasets import Dataset
from figures import print_figures
from made_up import small_llama
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

STEPS = 3
WORDS = [f"word{number}" for number in range(1000)]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word."""
    special = ["<unk>", "<s>", "</s>", "<pad>"]
    vocabulary = {word: number for number, word in enumerate(special + WORDS)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
    )


def main() -> None:
    """Three steps."""
    texts = [
        " ".join(WORDS[(17 * row + place) % len(WORDS)] for place in range(200 + 10 * row))
        for row in range(24)
    ]
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = SFTTrainer(
            model=LlamaForCausalLM(small_llama()),
            processing_class=make_tokenizer(),
            train_dataset=Dataset.from_dict({"text": texts}),
            args=SFTConfig(
                output_dir=output_dir,
                max_steps=STEPS,
                per_device_train_batch_size=4,
                max_length=512,
                bf16=True,
                logging_steps=1,
                disable_tqdm=True,
                save_strategy="no",
                report_to="none",
            ),
        )
        trainer.train()
    print_figures(trainer.model, trainer.optimizer.optimizer, num_steps=STEPS)


if __name__ == "__main__":
    main()
