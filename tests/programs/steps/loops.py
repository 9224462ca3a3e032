"""Training and inference in the orders that programs have them in; the argument names one.

Every one prints how many optimizer steps, or forwards, it made in all.
"""

import sys

import torch
from torch import nn

WIDTH = 1024


def make_model() -> nn.Module:
    """A model whose training takes far more than its evaluation."""
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(8)]
    return nn.Sequential(*layers).cuda()


def make_batch(rows: int = 4096) -> torch.Tensor:
    """A batch of the size that both use."""
    return torch.randn(rows, WIDTH, device="cuda")


@torch.no_grad()
def evaluate(model: nn.Module, count: int = 5) -> None:
    """So many forwards without gradients, in evaluation mode."""
    model.eval()
    for _ in range(count):
        model(make_batch()).mean()
    model.train()


def update(model: nn.Module, optimizer: torch.optim.Optimizer, rows: int = 4096) -> None:
    """One training step."""
    model(make_batch(rows)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def evaluation_first() -> None:
    """As nanoGPT and Lightning have it: the optimizer, an evaluation, the training."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    evaluate(model)
    for _ in range(6):
        update(model, optimizer)


def late_optimizer() -> None:
    """An evaluation before there is an optimizer."""
    model = make_model()
    evaluate(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(6):
        update(model, optimizer)


def validation_between() -> None:
    """A validation after every second step, and one at the end."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(4):
        update(model, optimizer)
        if step % 2:
            evaluate(model, 3)


def frozen_encoder() -> None:
    """As latent diffusion has it: each step encodes its batch with a frozen model."""
    encoder, model = make_model().eval().requires_grad_(False), make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(6):
        with torch.no_grad():
            latents = encoder(make_batch())
        model(latents).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def two_optimizers() -> None:
    """As a GAN has it: one step of each in turn."""
    generator, critic = make_model(), make_model()
    optimizers = [torch.optim.AdamW(one.parameters()) for one in (generator, critic)]
    for _ in range(4):
        with torch.no_grad():
            fake = generator(make_batch())
        critic(fake).mean().backward()
        optimizers[1].step()
        critic(generator(make_batch())).mean().backward()
        optimizers[0].step()


def accumulation() -> None:
    """Four backwards for each step."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        for _ in range(4):
            model(make_batch(64)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def closures() -> None:
    """LBFGS calls forward and backward itself."""
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(make_batch(64)).mean()
        loss.backward()
        return loss

    for _ in range(4):
        optimizer.step(closure)


def by_hand() -> None:
    """Without an optimizer: the program changes the weights itself."""
    model = make_model()
    evaluate(model)
    for _ in range(4):
        model(make_batch()).mean().backward()
        with torch.no_grad():
            for one in model.parameters():
                one.sub_(one.grad)
                one.grad = None


def partial_batch() -> None:
    """An epoch whose last batch is smaller."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    for rows in (4096, 4096, 4096, 1024):
        update(model, optimizer, rows)


def larger_batch() -> None:
    """An epoch whose last batch is larger."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    for rows in (4096, 4096, 4096, 8192):
        update(model, optimizer, rows)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("ran to its end", flush=True)
