"""BoTorch's first loop: a Gaussian process is fitted, an acquisition function optimised, twice."""

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood

torch.manual_seed(0)
kind = {"dtype": torch.double, "device": torch.device("cuda")}
x = torch.rand(10, 2, **kind)
y = 1 - (x - 0.5).norm(dim=-1, keepdim=True) + 0.1 * torch.randn(10, 1, **kind)
bounds = torch.stack([torch.zeros(2, **kind), torch.ones(2, **kind)])
for round_ in range(2):
    model = SingleTaskGP(x, y, input_transform=Normalize(2), outcome_transform=Standardize(1))
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": 10}})
    improvement = LogExpectedImprovement(model, best_f=y.max())
    candidate, value = optimize_acqf(
        improvement, bounds=bounds, q=1, num_restarts=2, raw_samples=16, options={"maxiter": 10}
    )
    x = torch.cat((x, candidate))
    y = torch.cat((y, 1 - (candidate - 0.5).norm(dim=-1, keepdim=True)))
    print(f"round {round_} best {y.max().item():.4f} improvement {value.item():.4f}")
