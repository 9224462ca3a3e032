"""Eight small models that train on the CPU, with dropout where the kind has it.

made = MODELS["gpt2"]()
loss = made.loss(made.model, made.batch())
"""

import torch
from made import Made
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, LENGTH, BATCH, LAYERS = 64, 32, 12, 3, 3


def _blocks(pattern):
    return tuple(pattern.format(number) for number in range(LAYERS))


def _tokens():
    return torch.randint(VOCABULARY, (BATCH, LENGTH))


def _language_loss(model, tokens):
    return model(input_ids=tokens, labels=tokens).loss


def _language(model, blocks, mlps=()):
    return Made(model, _tokens, _language_loss, blocks, mlps)


def _classify(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def _images(size):
    return torch.randn(BATCH, 3, size, size), torch.randint(5, (BATCH,))


def gpt2():
    """Learned positions, LayerNorm, dropout everywhere, tied embeddings."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=4, n_positions=LENGTH
    )
    names = _blocks("transformer.h.{}")
    return _language(GPT2LMHeadModel(config), names, tuple(f"{name}.mlp" for name in names))


def llama():
    """Rotary positions, grouped heads, a gated feed-forward part."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=2, attention_dropout=0.1,
    )  # fmt: skip
    names = _blocks("model.layers.{}")
    return _language(LlamaForCausalLM(config), names, tuple(f"{name}.mlp" for name in names))


def vit():
    """Patches and a class token; attention is written out."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4, intermediate_size=48,
        image_size=16, patch_size=4, num_labels=5, hidden_dropout_prob=0.1,
        attn_implementation="eager",
    )  # fmt: skip

    def loss(model, batch):
        return model(pixel_values=batch[0], labels=batch[1]).loss

    model = ViTForImageClassification(config)
    layers = type(
        model.vit.layers[0] if hasattr(model.vit, "layers") else model.vit.encoder.layer[0]
    )
    names = tuple(name for name, part in model.named_modules() if type(part) is layers)
    return Made(model, lambda: _images(16), loss, names)


class Residual(nn.Module):
    """Two convolutions with batch statistics, of which one counts cumulatively."""

    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels, momentum=None)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.norm2(self.second(self.relu(self.norm(self.first(x)))))
        y += x
        return self.relu(y)


class ResNet(nn.Module):
    """A residual network with batch norm and ReLUs in place."""

    def __init__(self, channels=8):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels))
        self.stages = nn.ModuleList(Residual(channels) for _ in range(LAYERS))
        self.head = nn.Linear(channels, 5)

    def forward(self, images):
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean((2, 3)))


def resnet():
    """Batch statistics."""

    return Made(ResNet(), lambda: _images(8), _classify, _blocks("stages.{}"))


def t5():
    """An encoder and a decoder, with relative positions that the first layer shares."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCABULARY, d_model=WIDTH, d_kv=8, d_ff=48, num_layers=LAYERS, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    names = _blocks("encoder.block.{}") + _blocks("decoder.block.{}")
    return _language(T5ForConditionalGeneration(config), names)


def mixture():
    """Experts that a router chooses, with its loss beside."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4, attention_dropout=0.1,
        output_router_logits=True, router_aux_loss_coef=0.1,
    )  # fmt: skip
    return _language(MixtralForCausalLM(config), _blocks("model.layers.{}"))


class Dense(nn.Module):
    """A layer with dropout."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        return self.dropout(F.gelu(self.linear(x)))


class Perceptron(nn.Module):
    """Layers one after another, of which one is used twice."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Dense() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x):
        for layer in (*self.layers, self.layers[0]):
            x = layer(x)
        return self.head(x)


def mlp():
    """Dropout between linear layers."""

    def batch():
        return torch.randn(BATCH, WIDTH), torch.randint(5, (BATCH,))

    return Made(Perceptron(), batch, _classify, _blocks("layers.{}"))


def mamba():
    """A state-space model, scanned in Python."""
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, state_size=4
    )
    return _language(MambaForCausalLM(config), _blocks("backbone.layers.{}"))


MODELS = {one.__name__: one for one in (gpt2, llama, vit, resnet, t5, mixture, mlp, mamba)}
