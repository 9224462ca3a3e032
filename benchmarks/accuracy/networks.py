"""The networks other than transformers that the workloads define themselves."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LSTMTagger(nn.Module):
    """An embedding, two LSTM layers and a label per token."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(20000, 512)
        self.rnn = nn.LSTM(512, 1024, 2, batch_first=True, dropout=0.1)
        self.out = nn.Linear(1024, 50)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of (batch, tokens, 50). x is (batch, tokens)."""
        return self.out(self.rnn(self.emb(x))[0])


def double_conv(num_in: int, num_out: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with group norm and SiLU."""
    return nn.Sequential(
        nn.Conv2d(num_in, num_out, 3, padding=1),
        nn.GroupNorm(8, num_out),
        nn.SiLU(),
        nn.Conv2d(num_out, num_out, 3, padding=1),
        nn.GroupNorm(8, num_out),
        nn.SiLU(),
    )


class UNet(nn.Module):
    """Four levels down, three up, with skip connections."""

    def __init__(self, base: int = 64) -> None:
        super().__init__()
        c = [base, 2 * base, 4 * base, 8 * base]
        self.down = nn.ModuleList(
            [
                double_conv(3, c[0]),
                double_conv(c[0], c[1]),
                double_conv(c[1], c[2]),
                double_conv(c[2], c[3]),
            ]
        )
        self.up = nn.ModuleList(
            [
                double_conv(c[3] + c[2], c[2]),
                double_conv(c[2] + c[1], c[1]),
                double_conv(c[1] + c[0], c[0]),
            ]
        )
        self.out = nn.Conv2d(base, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x and the result are (batch, 3, height, width)."""
        skips = []
        for index, block in enumerate(self.down):
            x = block(x)
            if index < 3:
                skips.append(x)
                x = F.avg_pool2d(x, 2)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), skips.pop()], 1))
        return self.out(x)


class Residual(nn.Module):
    """Two 3x3 convolutions with batch norm beside a shortcut."""

    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(num_in, num_out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(num_out, num_out, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(num_out), nn.BatchNorm2d(num_out)
        self.short = nn.Conv2d(num_in, num_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x is (batch, channels, height, width)."""
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)), inplace=True)))
        return F.relu(y + self.short(x), inplace=True)


def residual_cnn() -> nn.Sequential:
    """A network of the shape of ResNet-18, for images of 224x224."""
    widths = (64, 64, 128, 128, 256, 256, 512, 512)
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    for num_in, num_out in zip((64, *widths), widths, strict=False):
        layers.append(Residual(num_in, num_out, 1 if num_in == num_out else 2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class MeanOfNeighbours(nn.Module):
    """A graph layer: a node's own features and the mean of its neighbours' (GraphSAGE)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """x is (nodes, C), edges (2, E) from node to node."""
        source, target = edges
        total = torch.zeros_like(x).index_add(0, target, x.index_select(0, source))
        count = x.new_zeros(len(x)).index_add(0, target, x.new_ones(len(target)))
        return F.relu(self.own(x) + self.others(total / count.clamp(min=1)[:, None]))


class AttentionToNeighbours(nn.Module):
    """A graph layer: a softmax over each node's incoming edges weighs them (GAT)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.value, self.source, self.target = (
            nn.Linear(dim, dim),
            nn.Linear(dim, 1),
            nn.Linear(dim, 1),
        )

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """x is (nodes, C), edges (2, E) from node to node."""
        source, target = edges
        score = F.leaky_relu((self.source(x)[source] + self.target(x)[target])[:, 0])
        zeros = score.new_zeros(len(x))
        top = zeros.scatter_reduce(0, target, score.detach(), "amax", include_self=False)
        weight = (score - top[target]).exp()
        weight = weight / zeros.scatter_add(0, target, weight)[target]
        value = self.value(x)
        messages = value[source] * weight[:, None].to(value.dtype)
        return F.elu(torch.zeros_like(value).index_add(0, target, messages))


class GNN(nn.Module):
    """Three graph layers and a class per node."""

    def __init__(self, layer: type[nn.Module], dim: int = 128) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer(dim) for _ in range(3))
        self.out = nn.Linear(dim, 40)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Scores (nodes, 40). x is (nodes, 128), edges (2, E)."""
        for layer in self.layers:
            x = layer(x, edges)
        return self.out(x)
