"""Workloads of models from transformers and timm, in their own shapes, with random weights."""

from typing import Any

import torch
from torch import Tensor, nn
from train import BF16, Step, images, integers, train


def own_labels_hf(model: nn.Module, ids: Tensor) -> Tensor:
    """The loss of a transformers model on its own input."""
    return model(input_ids=ids, labels=ids).loss


def timm_train(name: str, batch: int, **kw: Any) -> Step:
    """One of timm's image models, trained."""
    import timm

    return images(timm.create_model(name), batch, **kw)


def timm_infer(name: str, batch: int) -> Step:
    """One of timm's image models, inference only."""
    import timm

    model = timm.create_model(name).cuda().eval()

    def step() -> None:
        with torch.inference_mode():
            model(torch.randn(batch, 3, 224, 224, device="cuda"))

    return step


def llama(
    *,
    layers: int = 16,
    checkpoint: bool = False,
    attn: str = "sdpa",
    dtype: torch.dtype = BF16,
    **kw: Any,
) -> Step:
    """transformers' Llama in the shape of 3.2 1B, batch 2 x 2048."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attn)
    model.config.use_cache = False
    if checkpoint:
        model.gradient_checkpointing_enable()
    return train(model, integers(0, 1000, (2, 2048)), own_labels_hf, **kw)


def llama_generate() -> Step:
    """Sixty-four new tokens for four prompts of 512, with a KV cache."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=8,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=32000,
        max_position_embeddings=4096,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=BF16).cuda().eval()

    def step() -> None:
        ids = torch.randint(1, 1000, (4, 512), device="cuda")
        mask = torch.ones_like(ids)
        with torch.no_grad():
            model.generate(ids, attention_mask=mask, max_new_tokens=64, do_sample=False)

    return step


def bert(**kw: Any) -> Step:
    """transformers' BERT base as a classifier, batch 16 x 128."""
    from transformers import BertConfig, BertForSequenceClassification

    def make() -> tuple[Tensor, Tensor]:
        ids = torch.randint(0, 30000, (16, 128), device="cuda")
        return ids, torch.randint(0, 2, (16,), device="cuda")

    model = BertForSequenceClassification(BertConfig())
    return train(model, make, lambda m, b: m(input_ids=b[0], labels=b[1]).loss, **kw)


def t5() -> Step:
    """transformers' T5 small, batch 8 x 256."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=512, num_layers=6, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    return train(model, integers(1, 30000, (8, 256)), own_labels_hf)


def mixtral() -> Step:
    """A small Mixtral in bf16: eight experts, batch 4 x 1024."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=4,
        num_local_experts=8,
        vocab_size=32000,
    )
    model = MixtralForCausalLM(config).bfloat16()
    return train(model, integers(1, 30000, (4, 1024)), own_labels_hf)


def whisper() -> Step:
    """transformers' Whisper small: four pieces of thirty seconds."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=768,
        encoder_layers=12,
        decoder_layers=12,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
    )
    model = WhisperForConditionalGeneration(config)

    def make() -> tuple[Tensor, Tensor]:
        features = torch.randn(4, 80, 3000, device="cuda")
        return features, torch.randint(1, 1000, (4, 128), device="cuda")

    return train(model, make, lambda m, b: m(input_features=b[0], labels=b[1]).loss, amp=BF16)
