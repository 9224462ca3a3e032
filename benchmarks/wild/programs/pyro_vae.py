"""Pyro's variational autoencoder, trained by stochastic variational inference."""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import Adam
from torch import nn


class VAE(nn.Module):
    def __init__(self, z=20, hidden=200):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(784, hidden), nn.Softplus())
        self.loc, self.log_scale = nn.Linear(hidden, z), nn.Linear(hidden, z)
        self.decoder = nn.Sequential(
            nn.Linear(z, hidden), nn.Softplus(), nn.Linear(hidden, 784), nn.Sigmoid()
        )
        self.z = z

    def model(self, x):
        pyro.module("decoder", self.decoder)
        with pyro.plate("data", len(x)):
            zero = torch.zeros(len(x), self.z, device=x.device)
            z = pyro.sample("latent", dist.Normal(zero, zero + 1).to_event(1))
            pixels = self.decoder(z)
            pyro.sample("obs", dist.Bernoulli(pixels, validate_args=False).to_event(1), obs=x)

    def guide(self, x):
        pyro.module("hidden", self.hidden)
        pyro.module("loc", self.loc)
        pyro.module("log_scale", self.log_scale)
        with pyro.plate("data", len(x)):
            h = self.hidden(x)
            normal = dist.Normal(self.loc(h), self.log_scale(h).exp())
            pyro.sample("latent", normal.to_event(1))


pyro.set_rng_seed(0)
pyro.clear_param_store()
vae = VAE().cuda()
svi = SVI(vae.model, vae.guide, Adam({"lr": 1e-3}), loss=Trace_ELBO())
for epoch in range(2):
    total = sum(svi.step(torch.rand(64, 784).bernoulli().cuda()) for _ in range(3))
    with torch.no_grad():
        test = svi.evaluate_loss(torch.rand(64, 784).bernoulli().cuda())
    print(f"epoch {epoch} train {total / 192:.4f} test {test / 64:.4f}")
