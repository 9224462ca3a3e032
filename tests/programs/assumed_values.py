"""Reads values that no kernel computed, in every way that programs do; prints what it got.

Each case is a function; the last line is a JSON object of their results, or of their errors.
"""

import itertools
import json
import math
from collections.abc import Callable

import torch
from torch import distributions, nn

CUDA = torch.device("cuda")
CASES: dict[str, Callable[[], object]] = {}


def case(function: Callable[[], object]) -> Callable[[], object]:
    """Has the function run."""
    CASES[function.__name__] = function
    return function


def unknown(*size: int) -> torch.Tensor:
    """Numbers that only a kernel knows."""
    return torch.randn(*size, device=CUDA).tanh()


@case
def categorical() -> object:
    """Over few actions, over logits, over probabilities, over a vocabulary."""
    found = [distributions.Categorical(torch.ones(4).cuda()).sample().item()]
    found += (
        distributions.Categorical(probs=torch.tensor([0.2, 0.3, 0.5]).cuda()).sample((3,)).tolist()
    )
    policy = distributions.Categorical(logits=nn.Linear(16, 6).cuda()(unknown(32, 16)))
    action = policy.sample()
    policy.log_prob(action), policy.entropy()
    distributions.Categorical(probs=unknown(32, 6).softmax(-1)).sample()
    token = distributions.Categorical(logits=unknown(5, 51865)).sample()
    return bool(max(found) < 4 and action.max().item() < 6 and token.max() < 51865)


@case
def normal() -> object:
    """With positive scales."""
    mean = unknown(64, 8)
    for scale in (mean.exp(), nn.functional.softplus(mean), torch.ones(64, 8, device=CUDA)):
        policy = distributions.Normal(mean, scale)
        policy.log_prob(policy.rsample()).sum(-1)
    return True


@case
def dirichlet() -> object:
    """A sample is a simplex."""
    policy = distributions.Dirichlet(nn.functional.softplus(unknown(16, 5)))
    sample = policy.rsample()
    policy.log_prob(sample)
    return sample.sum(-1).tolist()


@case
def bernoulli() -> object:
    """A sample is 0 or 1."""
    policy = distributions.Bernoulli(logits=unknown(16, 5))
    sample = policy.sample()
    policy.log_prob(sample)
    return sorted(set(sample.flatten().tolist()) | {0.0, 1.0})


@case
def beta() -> object:
    """A sample lies between 0 and 1."""
    policy = distributions.Beta(unknown(64, 256).exp(), unknown(64, 256).exp())
    policy.log_prob(policy.rsample())
    return True


@case
def multivariate_normal() -> object:
    """With a covariance that is checked to be positive."""
    factor = unknown(8, 8)
    policy = distributions.MultivariateNormal(unknown(8), factor @ factor.T + torch.eye(8).cuda())
    policy.log_prob(policy.rsample()).item()
    known = distributions.MultivariateNormal(torch.zeros(3).cuda(), torch.eye(3).cuda())
    return tuple(known.sample().shape)


@case
def predicates() -> object:
    """Of one number, of few and of many."""
    x, large = unknown(64, 256), unknown(3000, 3000)
    loss = x.square().mean()
    finite = [bool(torch.isfinite(of).all()) for of in (loss, x, large)]
    same = [bool(loss == loss), torch.allclose(x, x), torch.equal(x, x.clone())]
    order = [bool((of[:, 2:] >= of[:, :-2]).all()) for of in (x, large)]
    wrong = [bool(of.isnan().any()) or bool(of.isinf().any()) for of in (loss, x, large)]
    read = loss.item() == loss.item() and math.isfinite(loss.item())
    return finite + same + order + [read], wrong


@case
def masks() -> object:
    """One mask, read on the device and on the host, whichever comes first: counts of it."""
    rows, scores, results = unknown(64, 256), unknown(64), []
    for bound in (0.88, -0.5, 0.1):
        for begin in (0, 3):
            scores, mask = unknown(64), None
            mask = scores > bound
            ways = (
                lambda mask: len(rows[mask]),
                lambda mask: sum(mask.cpu().tolist()),
                lambda mask: int(mask.sum()),
                lambda mask: 64 * int(mask.all()),
                lambda mask: 64 * int(mask.any()),
                lambda mask: len(mask.nonzero()),
                lambda mask: 64 - len(rows[~mask]),
                lambda mask: sum(mask.tolist()),
                lambda mask, scores=scores, bound=bound: int((scores > bound).sum()),
                lambda mask, scores=scores, bound=bound: 64 - len(rows[scores <= bound]),
                lambda mask, scores=scores, bound=bound: 64 * int(scores.max().item() > bound),
            )
            results.append([way(mask) for way in ways[begin:] + ways[:begin]])
    return results


@case
def segment_anything() -> object:
    """Its filter: the same mask for tensors, arrays on the host and lists."""
    scores = unknown(64)
    data = [unknown(64, 4), torch.rand(64, 2), list(range(64))]
    keep = scores > 0.88
    on_device = data[0][torch.as_tensor(keep, device=CUDA)]
    on_host = data[1][keep.detach().cpu().numpy()]
    in_list = [value for index, value in enumerate(data[2]) if keep[index]]
    return [len(on_device), len(on_host), len(in_list)]


@case
def best_accuracy() -> object:
    """A loop that keeps its best."""
    labels, best = torch.randint(10, (512,)).cuda(), 0.0
    for _ in range(3):
        predicted = unknown(512, 10).argmax(dim=1)
        accuracy = int((predicted == labels).sum()) / 512
        if accuracy > best:
            best = test_accuracy = accuracy
    return 0 < test_accuracy < 1


@case
def scaler() -> object:
    """Five updates of a gradient scaler: its scale stays, the loss falls."""
    net = nn.Linear(64, 64).cuda()
    optimizer, scale = torch.optim.AdamW(net.parameters()), torch.amp.GradScaler("cuda")
    scales, losses = [], []
    for _ in range(5):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(net(unknown(8, 64)), unknown(8, 64))
        scale.scale(loss).backward()
        scale.step(optimizer)
        scale.update()
        optimizer.zero_grad()
        scales.append(scale.get_scale())
        losses.append(loss.item())
    is_falling = all(a > b > 0 for a, b in itertools.pairwise(losses))
    return [scales, is_falling]


@case
def indices() -> object:
    """Chosen ones are distinct."""
    x = unknown(4, 300)
    chosen = [x.topk(7).indices, x[0].topk(5).indices, unknown(2, 60000).topk(9).indices,
              x.argsort(-1), x.sort(descending=True).indices, torch.randperm(50, device=CUDA)[None],
              torch.multinomial(x.softmax(-1), 6)]  # fmt: skip
    rows = [row for one in chosen for row in one.reshape(-1, one.size(-1)).tolist()]
    in_range = all(0 <= index < 60000 for row in rows for index in row)
    return [all(len(set(row)) == len(row) for row in rows), in_range]


@case
def draws() -> object:
    """Random numbers with small results: in range, the same again from the same state."""
    data, length = torch.arange(100_000, device=CUDA), 128

    def draw() -> list[object]:
        start = torch.randint(len(data) - length, (1,), device=CUDA)
        window, targets = data[start : start + length], data[start + 1 : start + 1 + length]
        crop = torch.empty(2, device=CUDA).uniform_(2, 3).tolist()
        flags = torch.bernoulli(torch.full((64,), 0.5, device=CUDA)).tolist()
        chosen = torch.multinomial(torch.ones(10, device=CUDA), 4).tolist()
        order = torch.randperm(50, device=CUDA).tolist()
        ends = [start.item() + length, (start + length).item()]
        return [len(window), len(targets), ends, crop, flags, chosen, order]

    torch.manual_seed(5)
    state = torch.cuda.get_rng_state()
    first, second = draw(), draw()
    torch.cuda.set_rng_state(state)
    again = draw()
    torch.manual_seed(6)
    other = draw()
    sizes, ends, crop, flags, chosen, order = first[:2], *first[2:]
    right = [sizes == [length, length], ends[0] == ends[1], all(2 <= x < 3 for x in crop)]
    right += [set(flags) == {0.0, 1.0}, len(set(chosen)) == 4, sorted(order) == [*range(50)]]
    return [right, first == again, first == second, first == other]


@case
def beam_search() -> object:
    """As whisper does it: each text's next tokens, the best of all, until all have ended."""
    texts, end = [[1], [1]], 50257
    for _ in range(6):
        log_probs, scores = unknown(len(texts), 51865).log_softmax(-1), {}
        for index, text in enumerate(texts):
            for log_prob, token in zip(*log_probs[index].topk(3), strict=True):
                scores[*text, token.item()] = log_prob.item()
        ranked = sorted(scores, key=scores.__getitem__, reverse=True)
        texts = [list(text) for text in ranked[:2] if text[-1] != end]
    return [len(texts), len({tuple(text) for text in texts}), len(texts[0])]


@case
def numbers() -> object:
    """Scalars that are divided by, or whose logarithm is taken."""
    error = nn.functional.mse_loss(unknown(8, 8), unknown(8, 8))
    on_host = 10 * math.log10(1 / error.item())
    on_device = (10 * torch.log10(1 / error)).item()
    precision, recall = unknown(4).mean().item(), unknown(4).mean().item()
    f1 = 2 * precision * recall / (precision + recall)
    return [math.isclose(on_host, on_device, rel_tol=1e-5), f1 > 0, math.log(error.item()) < 0]


@case
def known_numbers() -> object:
    """What is really known stays so, small and large."""
    large = torch.ones(2000, 2000, device=CUDA)
    zeros = torch.zeros(700, 900, device=CUDA)
    return [large.mean().item(), zeros.cpu().abs().max().item(), zeros.sum().item(),
            torch.tensor([0.25, 0.5]).cuda().sum().item()]  # fmt: skip


if __name__ == "__main__":
    outcome = {}
    for name, run in CASES.items():
        try:
            outcome[name] = run()
        except Exception as error:
            outcome[name] = f"{type(error).__name__}: {str(error)[:300]}"
    print(json.dumps(outcome))
