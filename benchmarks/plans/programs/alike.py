"""Twenty small trainings, on a GPU or, with real numbers of double precision, on the CPU.

    alike.py NAME --rows 64 --length 256            # on the GPU: what a plan is looked for
    alike.py NAME --rows 2 --length 16 --numbers FILE [--zero]  # on the CPU: what it comes to

With --numbers, losses and parameters after five steps go to a file of numpy's. --zero has every
second Linear and Conv2d start at zero, as the projections of DiT and muP do; --zero-later makes
them zero after five steps, and five more follow.
"""

import argparse
import importlib.util
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

EXAMPLES = Path(__file__).parents[3] / "examples"
VOCABULARY, WIDTH, LAYERS, HEADS, CLASSES = 1024, 256, 6, 4, 10
NUM_STEPS = 5
_LONGEST = 1024


def example(name):
    """The module of an example of this repository."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / name / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class CausalBlock(nn.Module):
    """A block of GPT-2 with attention written out and a mask in a buffer, as in minGPT."""

    def __init__(self, dropout):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)
        mask = torch.tril(torch.ones(_LONGEST, _LONGEST)).view(1, 1, _LONGEST, _LONGEST)
        self.register_buffer("bias", mask)

    def attend(self, x):
        rows, length, _ = x.size()
        heads = [
            part.view(rows, length, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in self.c_attn(x).split(WIDTH, dim=2)
        ]
        scores = heads[0] @ heads[1].transpose(-2, -1) / math.sqrt(WIDTH // HEADS)
        scores = scores.masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf"))
        mixed = self.dropout(F.softmax(scores, dim=-1)) @ heads[2]
        return self.c_proj(mixed.transpose(1, 2).contiguous().view(rows, length, WIDTH))

    def forward(self, x):
        x = x + self.dropout(self.attend(self.ln_1(x)))
        return x + self.dropout(self.down(F.gelu(self.up(self.ln_2(x)))))


class SmallGPT(nn.Module):
    """Returns logits and the loss of targets, as in minGPT and nanoGPT."""

    def __init__(self, dropout=0.0, *, is_tied=False, layers=LAYERS):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(_LONGEST, WIDTH)
        self.h = nn.ModuleList(CausalBlock(dropout) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        if is_tied:
            self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


class AdaptiveBlock(nn.Module):
    """A block whose norms are shifted and scaled by a condition, as in DiT."""

    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH))

    def forward(self, x, condition):
        shift1, scale1, gate1, shift2, scale2, gate2 = (
            part.unsqueeze(1) for part in self.modulation(condition).chunk(6, dim=1)
        )
        y = self.norm1(x) * (1 + scale1) + shift1
        x = x + gate1 * self.attention(y, y, y, need_weights=False)[0]
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class SmallDiT(nn.Module):
    """Noise of patches, by their time."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(16, WIDTH), nn.Linear(WIDTH, 16)
        self.time = nn.Linear(1, WIDTH)
        self.blocks = nn.ModuleList(AdaptiveBlock() for _ in range(LAYERS))

    def forward(self, x, time):
        x, condition = self.into(x), self.time(time)
        for block in self.blocks:
            x = block(x, condition)
        return self.out(x)


class SmallVAE(nn.Module):
    """Convolutions into a code that is drawn, and back."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(64, 32, 1),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Conv2d(16, 64, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(64, 3, 1)
        )

    def forward(self, x):
        mean, deviation = self.encoder(x).chunk(2, dim=1)
        code = mean + torch.exp(0.1 * deviation) * torch.randn_like(mean)
        return self.decoder(code)


def tokens(args):
    """Random words."""
    return torch.randint(0, VOCABULARY, (args.rows, args.length))


def images(args):
    """Random images, as large as sequences are long."""
    return torch.randn(args.rows, 3, args.side, args.side)


def of_logits(model, args, device):
    """The loss of a model that gives logits of words."""
    ids = tokens(args).to(device)
    logits = model(ids)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids.reshape(-1))


def of_transformers(model, args, device):
    """The loss that a model of transformers gives itself."""
    ids = tokens(args).to(device)
    return model(input_ids=ids, labels=ids).loss


def of_images(model, args, device):
    """The loss of a classifier of images."""
    found = model(images(args).to(device))
    logits = found if isinstance(found, torch.Tensor) else found.logits
    return F.cross_entropy(logits, torch.randint(0, CLASSES, (args.rows,)).to(device))


def of_targets(model, args, device):
    """The loss of a model that is given its targets and returns it, last or alone."""
    ids = tokens(args).to(device)
    found = model(ids, ids)
    return found[-1] if isinstance(found, tuple) else found


def of_itself(model, args, device):
    """How far an image is from what the model makes of it."""
    x = images(args).to(device)
    found = model(x)
    return F.mse_loss(found, x)


def of_noise(model, args, device):
    """The loss of a denoiser of patches."""
    x, time = torch.randn(args.rows, args.length, 16), torch.rand(args.rows, 1)
    return F.mse_loss(model(x.to(device), time.to(device)), x.to(device))


def of_diffusers(model, args, device):
    """The loss of a denoiser of diffusers."""
    x = images(args).to(device)
    time = torch.randint(0, 1000, (args.rows,)).to(device)
    return F.mse_loss(model(x, time).sample, x)


def hugging(name, **settings):
    """A language model of transformers with random weights."""
    import transformers

    config = getattr(transformers, f"{name}Config")(vocab_size=VOCABULARY, **settings)
    config.decoder_start_token_id = config.pad_token_id = 0
    kind = {
        "T5": "T5ForConditionalGeneration",
        "Bert": "BertForMaskedLM",
        "GPT2": "GPT2LMHeadModel",
    }
    return getattr(transformers, kind.get(name, f"{name}ForCausalLM"))(config)


_LLAMA = {
    "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": 2,
}  # fmt: skip


def vision(name, **settings):
    """A model of timm with random weights."""
    import timm

    return timm.create_model(name, pretrained=False, num_classes=CLASSES, **settings)


def with_lora():
    """A llama with LoRA of peft."""
    import peft

    settings = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    return peft.get_peft_model(hugging("Llama", **_LLAMA), settings)


def x_decoder():
    """A decoder of x-transformers in the wrapper that shifts its words."""
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    return AutoregressiveWrapper(
        TransformerWrapper(
            num_tokens=VOCABULARY, max_seq_len=_LONGEST,
            attn_layers=Decoder(dim=WIDTH, depth=LAYERS, heads=HEADS, rotary_pos_emb=True),
        )
    )  # fmt: skip


def lightning_gpt():
    """SmallGPT as a LightningModule."""
    import lightning

    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = SmallGPT()

        def forward(self, idx, targets):
            return self.model(idx, targets)

    return Task()


def denoiser():
    """A U-Net of diffusers."""
    from diffusers import UNet2DModel

    return UNet2DModel(
        sample_size=32, layers_per_block=1, block_out_channels=(64, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"), norm_num_groups=8,
    )  # fmt: skip


def experts():
    """The mixture of experts of the examples."""
    args = SimpleNamespace(
        dim=WIDTH, layers=4, heads=HEADS, hidden_dim=WIDTH, experts=4, top_k=2,
        capacity_factor=1.25, seq_len=_LONGEST,
    )  # fmt: skip
    return example("moe").MixtureOfExperts(args)


MODELS = {
    "gpt2-example": (lambda: example("gpt2").GPT(), of_targets),
    "gpt2-example-small": (
        lambda: example("gpt2").GPT(num_layers=LAYERS, dim=WIDTH, num_heads=HEADS), of_targets,
    ),
    "residual-net-example": (
        lambda: example("residual_net").ResidualNet(8, 64, use_checkpoint=False), of_images,
    ),
    "moe-example": (experts, of_targets),
    "mingpt": (lambda: SmallGPT(0.1), of_targets),
    "nanogpt": (lambda: SmallGPT(is_tied=True), of_targets),
    "nanogpt-tiny": (lambda: SmallGPT(is_tied=True, layers=2), of_targets),  # for a test
    "dit": (SmallDiT, of_noise),
    "vae": (SmallVAE, of_itself),
    "gpt2": (
        lambda: hugging("GPT2", n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS), of_transformers,
    ),
    "llama": (lambda: hugging("Llama", **_LLAMA), of_transformers),
    "bert": (
        lambda: hugging(
            "Bert", hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            intermediate_size=1024,
        ),
        of_transformers,
    ),
    "t5": (
        lambda: hugging("T5", d_model=WIDTH, d_ff=512, num_layers=3, num_heads=HEADS, d_kv=64),
        of_transformers,
    ),
    "qwen3": (lambda: hugging("Qwen3", **_LLAMA), of_transformers),
    "lora": (with_lora, of_transformers),
    "x-transformers": (x_decoder, lambda model, args, device: model(tokens(args).to(device))),
    "lightning": (lightning_gpt, of_targets),
    "resnet18": (lambda: vision("resnet18"), of_images),
    "vit-tiny": (lambda: vision("vit_tiny_patch16_224", img_size=64), of_images),
    "convnext": (lambda: vision("convnext_atto"), of_images),
    "unet": (denoiser, of_diffusers),
}  # fmt: skip


class Numbers(Dataset):
    """Data for workers to load, of which the trainings in the style of minGPT take none."""

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return torch.tensor(index)


def zero_projections(model):
    """Has every second layer start at zero."""
    layers = [one for one in model.modules() if isinstance(one, nn.Linear | nn.Conv2d)]
    with torch.no_grad():
        for layer in layers[1::2]:
            layer.weight.zero_()


def train(args, device):
    """Five steps: losses, and the parameters after them."""
    torch.manual_seed(0)
    make, loss_of = MODELS[args.name]
    model = make()
    if args.zero:
        zero_projections(model)
    model = model.to(device).train()
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4)
    workers = None
    if args.name == "mingpt":  # its trainer has workers before the model is first called
        workers = iter(DataLoader(Numbers(), batch_size=args.rows, num_workers=2))
    losses = []
    for step in range(2 * NUM_STEPS if args.zero_later else NUM_STEPS):
        if step == NUM_STEPS:
            zero_projections(model)
        if workers is not None:
            next(workers)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, args, device)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: one.detach().cpu().numpy() for name, one in model.named_parameters()}


def main():
    """Trains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--zero", action="store_true")
    parser.add_argument("--zero-later", action="store_true")
    parser.add_argument("--numbers")
    args = parser.parse_args()
    device = "cpu" if args.numbers else "cuda"
    if args.numbers:
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1)
    losses, parameters = train(args, device)
    if args.numbers:
        np.savez(args.numbers, losses=np.array(losses), **parameters)


if __name__ == "__main__":
    main()
