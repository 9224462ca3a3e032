"""Downlink of a massive-MIMO base station: 64 antennas serve 16 users on 1000 subcarriers.

Each frame draws a Rayleigh channel in complex64, computes a precoder for every subcarrier (zero
forcing or MMSE, a batch of 16 x 16 systems), sends QPSK symbols through it and reports the bit
error rate and the sum rate. There is nothing to train; the memory is that of complex tensors and of
the solver's work area.

    python examples/massive_mimo/simulate.py --precoder mmse --batch-size 8
    ullage run --gpu t4 -- examples/massive_mimo/simulate.py --precoder mmse --batch-size 8
"""

import argparse
import time

import torch
from torch import Tensor, nn


class Downlink(nn.Module):
    """One frame over the air: the channel, the precoder and the users' decisions.

    Shapes: B frames, S subcarriers, K users, M antennas, T OFDM symbols.
    """

    def __init__(
        self, num_antennas: int, num_users: int, num_subcarriers: int, *, precoder: str
    ) -> None:
        super().__init__()
        self.shape = (num_subcarriers, num_users, num_antennas)
        self.precoder = precoder
        self.register_buffer("identity", torch.eye(num_users, dtype=torch.complex64))

    def precode(self, channel: Tensor, noise_power: float) -> Tensor:
        """H^H (H H^H + a I)^-1 for a channel H of (B, S, K, M); columns of unit length.

        a is 0 for zero forcing and the users' total noise power for MMSE.
        """
        gram = channel @ channel.mH
        if self.precoder == "mmse":
            gram = gram + channel.shape[-2] * noise_power * self.identity
            solved = torch.cholesky_solve(channel, torch.linalg.cholesky(gram))
        else:
            solved = torch.linalg.solve(gram, channel)
        weights = solved.mH  # (H H^H + a I)^-1 is its own conjugate transpose
        return weights / torch.linalg.vector_norm(weights, dim=-2, keepdim=True)

    def forward(self, batch_size: int, num_symbols: int, snr_db: float) -> tuple[Tensor, Tensor]:
        """The bit error rate, and the sum rate in bits per subcarrier: means over the frames."""
        num_subcarriers, num_users, _ = self.shape
        noise_power = 10 ** (-snr_db / 10)
        device = self.identity.device
        channel = torch.randn(batch_size, *self.shape, dtype=torch.complex64, device=device)
        weights = self.precode(channel, noise_power)

        symbols_shape = (batch_size, num_subcarriers, num_users, num_symbols)
        bits = torch.randint(0, 2, (2, *symbols_shape), device=device, dtype=torch.int8)
        symbols = torch.complex(1.0 - 2 * bits[0], 1.0 - 2 * bits[1]) / 2**0.5
        noise = torch.randn(symbols_shape, dtype=torch.complex64, device=device)
        received = channel @ (weights @ symbols) + noise_power**0.5 * noise
        decided = torch.stack((received.real < 0, received.imag < 0))
        bit_error_rate = (decided != bits.bool()).float().mean()

        gains = (channel @ weights).abs().square()
        signal = gains.diagonal(dim1=-2, dim2=-1)
        interference = gains.sum(dim=-1) - signal
        rates = torch.log2(1 + signal / (interference + noise_power))
        return bit_error_rate, rates.sum(dim=-1).mean()


def main() -> None:
    """Simulate; one line per batch of frames."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch-size", type=int, default=1, help="frames at a time")
    parser.add_argument("--antennas", type=int, default=64)
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--subcarriers", type=int, default=1000)
    parser.add_argument("--symbols", type=int, default=14, help="OFDM symbols in a frame")
    parser.add_argument("--snr-db", type=float, default=10.0)
    parser.add_argument("--precoder", choices=("zf", "mmse"), default="zf")
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(0)
    downlink = Downlink(args.antennas, args.users, args.subcarriers, precoder=args.precoder)
    downlink.to("cuda").eval()
    for step in range(args.steps):
        started = time.perf_counter()
        with torch.inference_mode():
            error_rate, sum_rate = downlink(args.batch_size, args.symbols, args.snr_db)
        text = f"bit error rate {error_rate.item():.2e}  sum rate {sum_rate.item():.2f}"
        print(f"step {step}  {text}  {(time.perf_counter() - started) * 1e3:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
