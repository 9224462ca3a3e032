"""Made-up text, tokenizers and images for the programs of this directory: nothing is downloaded."""

import random

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = [f"word{i}" for i in range(480)]
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]


def tokenizer():
    """Words split at spaces, with the usual special tokens and a chat template."""
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS, "user", "assistant", ":"])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        unk_token="<unk>", mask_token="<mask>", cls_token="<s>", sep_token="</s>",
        model_max_length=512,
    )  # fmt: skip
    fast.chat_template = (
        "{% for m in messages %}{{ m['role'] }} : {{ m['content'] }} </s> {% endfor %}"
        "{% if add_generation_prompt %}assistant : {% endif %}"
    )
    return fast


def sentences(count, low=8, high=40, seed=0):
    """Sentences of random words."""
    random.seed(seed)
    return [" ".join(random.choices(WORDS, k=random.randint(low, high))) for _ in range(count)]
