"""Workloads whose GPU memory is recorded as ground truth.

Each builder returns step(): one iteration on device "cuda". Random weights, made-up data, no
download. Needs torch; the hf_* and timm_* ones also transformers and timm.

    step = WORKLOADS["gpt_bf16"]()
    step()
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from networks import GPT, LSTMTagger, UNet
from torch import Tensor, nn
from workload_names import NAMES

Step = Callable[[], None]
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def train(
    model: nn.Module,
    make_batch: Callable[[], Any],
    loss_of: Callable[[nn.Module, Any], Tensor],
    *,
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW,
    amp: torch.dtype | None = None,
    scaler: bool = False,
    accumulate: int = 1,
    **options: Any,
) -> Step:
    """A training step: `accumulate` batches forward and backward, then the optimizer."""
    model = model.cuda().train()
    optim = optimizer(model.parameters(), lr=1e-4, **options)
    scale = torch.amp.GradScaler("cuda", enabled=scaler)

    def step() -> None:
        for _ in range(accumulate):
            batch = make_batch()
            with torch.autocast("cuda", dtype=amp or BF16, enabled=amp is not None):
                loss = loss_of(model, batch) / accumulate
            scale.scale(loss).backward()
        scale.step(optim)
        scale.update()
        optim.zero_grad()

    return step


def integers(low: int, high: int, shape: tuple[int, ...]) -> Callable[[], Tensor]:
    """A maker of random integers in [low, high) on the GPU."""
    return lambda: torch.randint(low, high, shape, device="cuda")


def own_labels(model: nn.Module, ids: Tensor) -> Tensor:
    """The loss of a network of ours on its own input."""
    return model(ids, ids)


def own_labels_hf(model: nn.Module, ids: Tensor) -> Tensor:
    """The loss of a transformers model on its own input."""
    return model(input_ids=ids, labels=ids).loss


def gpt(
    batch: int = 8, seq: int = 1024, *, network: dict[str, Any] | None = None, **kw: Any
) -> Step:
    """GPT-2 124M, or what `network` makes of it."""
    return train(GPT(**(network or {})), integers(0, 50304, (batch, seq)), own_labels, **kw)


def compiled_gpt() -> Step:
    """A GPT of four layers through torch.compile."""
    model = torch.compile(GPT(layers=4))
    return train(model, integers(0, 50304, (4, 1024)), own_labels, amp=BF16)


def no_cudnn_attention(build: Callable[[], Step]) -> Step:
    """The same workload with attention by PyTorch's own kernels."""
    torch.backends.cuda.enable_cudnn_sdp(enabled=False)
    return build()


def images(model: nn.Module, batch: int, *, channels_last: bool = False, **kw: Any) -> Step:
    """Classification of 224x224 images into 1000 classes."""
    if channels_last:
        model = model.to(memory_format=torch.channels_last)

    def make() -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, 3, 224, 224, device="cuda")
        x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
        return x, torch.randint(0, 1000, (batch,), device="cuda")

    return train(model, make, lambda m, b: F.cross_entropy(m(b[0]), b[1]), **kw)


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


def lstm() -> Step:
    """A two-layer LSTM tagger, batch 32 x 256."""
    make = integers(0, 50, (32, 256))
    return train(LSTMTagger(), make, lambda m, x: F.cross_entropy(m(x).flatten(0, 1), x.flatten()))


def unet() -> Step:
    """A UNet on eight images of 128x128."""

    def make() -> Tensor:
        return torch.randn(8, 3, 128, 128, device="cuda")

    return train(UNet(), make, lambda m, x: F.mse_loss(m(x), x), amp=BF16)


def mlp() -> Step:
    """Three linear layers, batch 256."""
    linear = nn.Linear
    model = nn.Sequential(
        linear(1024, 2048), nn.ReLU(), linear(2048, 2048), nn.ReLU(), linear(2048, 10)
    )

    def make() -> Tensor:
        return torch.randn(256, 1024, device="cuda")

    return train(model, make, lambda m, x: m(x).sum(), optimizer=torch.optim.Adam)


SGD: dict[str, Any] = {"optimizer": torch.optim.SGD, "momentum": 0.9}
MEDIUM = {"layers": 24, "dim": 1024, "heads": 16}
WORKLOADS: dict[str, Callable[[], Step]] = {
    "mlp_fp32_adam": mlp,
    "gpt_bf16": partial(gpt, amp=BF16),
    "gpt_bf16_flash": partial(no_cudnn_attention, partial(gpt, amp=BF16)),
    "gpt_fp32": partial(gpt, batch=4),
    "gpt_fp16_scaler_fused": partial(gpt, amp=FP16, scaler=True, fused=True),
    "gpt_bf16_forloop": partial(gpt, amp=BF16, foreach=False),
    "gpt_bf16_checkpoint": partial(gpt, amp=BF16, network={"checkpoint": True}),
    "gpt_bf16_accumulate4": partial(gpt, batch=2, amp=BF16, accumulate=4),
    "gpt_bf16_sgd": partial(gpt, amp=BF16, **SGD),
    "gpt_bf16_expandable": partial(gpt, amp=BF16),
    "gpt_medium_bf16": partial(gpt, batch=4, amp=BF16, network=MEDIUM),
    "gpt_compiled": compiled_gpt,
    "hf_llama1b": llama,
    "hf_llama1b_checkpoint": partial(llama, checkpoint=True),
    "hf_llama1b_eager": partial(llama, attn="eager", layers=4),
    "hf_llama1b_fp32_amp": partial(llama, dtype=FP32, amp=BF16, layers=8),
    "hf_llama_generate": llama_generate,
    "hf_bert_base": bert,
    "hf_bert_base_amp": partial(bert, amp=BF16),
    "hf_t5_small": t5,
    "hf_mixtral_small": mixtral,
    "hf_whisper_small": whisper,
    "timm_resnet50_fp32": partial(timm_train, "resnet50", 32, **SGD),
    "timm_resnet50_amp_cl": partial(
        timm_train, "resnet50", 64, amp=BF16, channels_last=True, **SGD
    ),
    "timm_resnet18_b128": partial(timm_train, "resnet18", 128, **SGD),
    "timm_vit_base_bf16": partial(timm_train, "vit_base_patch16_224", 64, amp=BF16),
    "timm_convnext_tiny": partial(timm_train, "convnext_tiny", 32, amp=BF16),
    "timm_efficientnet_b0": partial(
        timm_train, "efficientnet_b0", 64, amp=BF16, channels_last=True
    ),
    "timm_resnet50_infer": partial(timm_infer, "resnet50", 64),
    "unet_bf16": unet,
    "lstm_fp32": lstm,
}
assert tuple(WORKLOADS) == NAMES, "workload_names.py and workloads.py name different workloads"
