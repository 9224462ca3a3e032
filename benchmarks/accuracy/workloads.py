"""Workloads whose GPU memory is recorded as ground truth.

Each builder returns step(): one iteration on device "cuda". Random weights, made-up data, no
download. No size hangs on a value that the GPU computes, save those of the mixtures of experts in
hf_mixtral_small. Needs torch; the hf_* and timm_* ones also transformers and timm.

    step = WORKLOADS["gpt_bf16"]()
    step()
"""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import library_models
import torch
import torch.nn.functional as F
from adam8bit import Adam8bit
from linears import LoRALinear, float8, swap_linears
from networks import (
    GNN,
    AttentionToNeighbours,
    LSTMTagger,
    MeanOfNeighbours,
    UNet,
    residual_cnn,
)
from torch import Tensor, nn
from train import BF16, FP16, FP32, Step, images, integers, train
from transformer import GPT, Cache, DiT, ExpertsBlock, GrowingCache, StaticCache, ViT
from workload_names import NAMES

GIB = 2**30


def own_labels(model: nn.Module, ids: Tensor) -> Tensor:
    """The loss of a network of ours on its own input."""
    return model(ids, ids)


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


def lstm(**kw: Any) -> Step:
    """A two-layer LSTM tagger, batch 32 x 256."""
    make = integers(0, 50, (32, 256))

    def loss_of(model: nn.Module, x: Tensor) -> Tensor:
        return F.cross_entropy(model(x).flatten(0, 1), x.flatten())

    return train(LSTMTagger(), make, loss_of, **kw)


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


def gpt_bfloat16(**kw: Any) -> Step:
    """GPT-2 124M with weights in bfloat16."""
    return train(GPT().bfloat16(), integers(0, 50304, (8, 1024)), own_labels, **kw)


def gpt_float8() -> Step:
    """GPT-2 124M with the linear layers of its blocks in float8."""
    capability = torch.cuda.get_device_capability()
    if capability < (8, 9):
        raise RuntimeError(f"float8 products need compute capability 8.9, found {capability}")
    model = GPT()
    swap_linears(model.blocks, float8)
    return train(model.bfloat16(), integers(0, 50304, (8, 1024)), own_labels)


def gpt_lora() -> Step:
    """GPT-2 124M, frozen, with adapters of rank 16 at the linear layers of its blocks."""
    model = GPT().requires_grad_(requires_grad=False)
    swap_linears(model.blocks, LoRALinear)
    return train(model, integers(0, 50304, (8, 1024)), own_labels, amp=BF16)


def gpt_offload() -> Step:
    """GPT-2 124M; what backward needs waits in pinned host memory."""

    def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            return model(ids, ids)

    return train(GPT(), integers(0, 50304, (2, 1024)), loss_of, amp=BF16)


def gpt_varying(**kw: Any) -> Step:
    """GPT-2 124M on another length in each of four batches."""
    lengths = itertools.cycle((1024, 300, 777, 512))

    def make() -> Tensor:
        return torch.randint(0, 50304, (4, next(lengths)), device="cuda")

    return train(GPT(), make, own_labels, amp=BF16, accumulate=4, **kw)


def limit_memory(num_bytes: int) -> None:
    """Let the allocator have that much of the GPU, which is what its thresholds count from."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(num_bytes / total)


def gpt_collected() -> Step:
    """Lengths that vary within a limit near which the allocator gives blocks back."""
    limit_memory(8 * GIB)
    return gpt_varying()


def gpt_out_of_memory() -> Step:
    """A batch that does not fit, halved until it does."""
    limit_memory(5 * GIB)
    model = GPT(layers=4).cuda()

    def step() -> None:
        batch = 64
        while True:
            try:
                ids = torch.randint(0, 50304, (batch, 512), device="cuda")
                model(ids, ids).backward()
            except torch.cuda.OutOfMemoryError:
                batch //= 2
            else:
                break
        model.zero_grad()

    return step


def gpt_graph() -> Step:
    """A training step captured as a CUDA graph, and replayed."""
    model = GPT(layers=4).cuda()
    optim = torch.optim.AdamW(model.parameters(), capturable=True)
    ids = torch.zeros(4, 512, dtype=torch.int64, device="cuda")

    def one() -> None:
        model(ids, ids).backward()
        optim.step()
        optim.zero_grad()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        one()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one()

    def step(*_used_by_the_graph: object) -> None:
        ids.copy_(torch.randint(0, 50304, (4, 512), device="cuda"))
        graph.replay()

    return partial(step, model, optim)


def gpt_decode(make_cache: Callable[[], Cache] | None) -> Step:
    """Thirty-two new tokens for four prompts of 256; without a cache all is computed anew."""
    model = GPT().cuda().eval()

    def step() -> None:
        with torch.inference_mode():
            ids = torch.randint(0, 50304, (4, 256), device="cuda")
            caches = [make_cache() for _ in model.blocks] if make_cache else None
            start = 0
            for _ in range(32):
                scores = model.scores(ids[:, start:], start, caches)
                start = ids.shape[1] if caches else 0
                ids = torch.cat([ids, scores[:, -1:].argmax(-1)], 1)

    return step


def dit() -> Step:
    """A diffusion transformer learns the noise in 32 latents."""

    def make() -> tuple[Tensor, Tensor]:
        time = torch.randint(0, 1000, (32,), device="cuda")
        return torch.randn(32, 4, 32, 32, device="cuda"), time

    def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        clean, time = batch
        noise = torch.randn_like(clean)
        keep = torch.cos(time / 1000 * math.pi / 2)[:, None, None, None]
        return F.mse_loss(model(keep * clean + (1 - keep**2).sqrt() * noise, time), noise)

    return train(DiT(), make, loss_of, amp=BF16)


def diffusion_sample() -> Step:
    """Ten denoising steps of a UNet on four images of 256x256."""
    model = UNet().cuda().eval().half()

    def step() -> None:
        with torch.inference_mode():
            x = torch.randn(4, 3, 256, 256, device="cuda", dtype=FP16)
            for _ in range(10):
                x = x - 0.1 * model(x)

    return step


def encoder() -> Step:
    """torch's own encoder layers over padded batches of 16 x 256."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)

    def make() -> tuple[Tensor, Tensor]:
        lengths = torch.randint(1, 256, (16, 1), device="cuda")
        is_padding = torch.arange(256, device="cuda") >= lengths
        return torch.randn(16, 256, 512, device="cuda"), is_padding

    def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return model(batch[0], src_key_padding_mask=batch[1]).square().mean()

    return train(model, make, loss_of)


def gnn(layer: type[nn.Module], **kw: Any) -> Step:
    """Node classification on a random graph of 50,000 nodes and 500,000 edges."""

    def make() -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randn(50_000, 128, device="cuda")
        edges = torch.randint(0, 50_000, (2, 500_000), device="cuda")
        return x, edges, torch.randint(0, 40, (50_000,), device="cuda")

    return train(GNN(layer), make, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]), **kw)


SGD: dict[str, Any] = {"optimizer": torch.optim.SGD, "momentum": 0.9}
MEDIUM = {"layers": 24, "dim": 1024, "heads": 16}
EXPERTS = {"layers": 4, "block": ExpertsBlock}
LONG = {"max_tokens": 8192, "checkpoint": True}
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
    "hf_llama1b": library_models.llama,
    "hf_llama1b_checkpoint": partial(library_models.llama, checkpoint=True),
    "hf_llama1b_eager": partial(library_models.llama, attn="eager", layers=4),
    "hf_llama1b_fp32_amp": partial(library_models.llama, dtype=FP32, amp=BF16, layers=8),
    "hf_llama_generate": library_models.llama_generate,
    "hf_bert_base": library_models.bert,
    "hf_bert_base_amp": partial(library_models.bert, amp=BF16),
    "hf_t5_small": library_models.t5,
    "hf_mixtral_small": library_models.mixtral,
    "hf_whisper_small": library_models.whisper,
    "timm_resnet50_fp32": partial(library_models.timm_train, "resnet50", 32, **SGD),
    "timm_resnet50_amp_cl": partial(
        library_models.timm_train, "resnet50", 64, amp=BF16, channels_last=True, **SGD
    ),
    "timm_resnet18_b128": partial(library_models.timm_train, "resnet18", 128, **SGD),
    "timm_vit_base_bf16": partial(library_models.timm_train, "vit_base_patch16_224", 64, amp=BF16),
    "timm_convnext_tiny": partial(library_models.timm_train, "convnext_tiny", 32, amp=BF16),
    "timm_efficientnet_b0": partial(
        library_models.timm_train, "efficientnet_b0", 64, amp=BF16, channels_last=True
    ),
    "timm_resnet50_infer": partial(library_models.timm_infer, "resnet50", 64),
    "unet_bf16": unet,
    "lstm_fp32": lstm,
    "lstm_fp16_scaler": partial(lstm, amp=FP16, scaler=True),
    "cnn_fp32": lambda: images(residual_cnn(), 64, **SGD),
    "cnn_fp16_scaler_cl": lambda: images(
        residual_cnn(), 128, amp=FP16, scaler=True, channels_last=True, **SGD
    ),
    "cnn_max_split": lambda: images(residual_cnn(), 128, **SGD),
    "vit_bf16": lambda: images(ViT(), 64, amp=BF16),
    "dit_bf16": dit,
    "unet_fp16_sample": diffusion_sample,
    "encoder_fp32": encoder,
    "moe_bf16": partial(gpt, batch=4, amp=BF16, network=EXPERTS),
    "gnn_mean_fp32": partial(gnn, MeanOfNeighbours),
    "gnn_attention_fp32": partial(gnn, AttentionToNeighbours),
    "gpt_fp8": gpt_float8,
    "gpt_bfloat16_fused": partial(gpt_bfloat16, fused=True),
    "gpt_bf16_adafactor": partial(gpt, amp=BF16, optimizer=torch.optim.Adafactor),
    "gpt_bf16_adam8bit": partial(gpt, amp=BF16, optimizer=Adam8bit),
    "gpt_bf16_offload": gpt_offload,
    "gpt_bf16_lora": gpt_lora,
    "gpt_bf16_one_token": partial(gpt, batch=1, seq=1, amp=BF16),
    "gpt_bf16_batch512": partial(gpt, batch=512, seq=32, amp=BF16),
    "gpt_bf16_length8192": partial(gpt, batch=1, seq=8192, amp=BF16, network=LONG),
    "gpt_bf16_varying": gpt_varying,
    "gpt_bf16_varying_expandable": gpt_varying,
    "gpt_bf16_varying_roundup": gpt_varying,
    "gpt_bf16_varying_collected": gpt_collected,
    "gpt_fp32_out_of_memory": gpt_out_of_memory,
    "gpt_fp32_graph": gpt_graph,
    "gpt_fp32_no_cache": partial(gpt_decode, None),
    "gpt_fp32_growing_cache": partial(gpt_decode, GrowingCache),
    "gpt_fp32_static_cache": partial(gpt_decode, lambda: StaticCache(4, 12, 288, 64)),
}
assert tuple(WORKLOADS) == NAMES, "workload_names.py and workloads.py name different workloads"
