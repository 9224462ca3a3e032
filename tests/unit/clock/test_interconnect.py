"""Links between GPUs, as people write them."""

from __future__ import annotations

import pytest

from ullage.clock.interconnect import Interconnect, default_interconnect, parse_interconnect
from ullage.facts.gpus import find_gpu
from ullage.ground.errors import SpecError


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("nvlink", Interconnect()),
        ("pcie", Interconnect(is_pcie=True)),
        ("400Gb/s", Interconnect(between_bytes_per_s=50e9)),
        ("nvlink+400Gb/s", Interconnect(between_bytes_per_s=50e9)),
        ("PCIe + 25 GB/s", Interconnect(is_pcie=True, between_bytes_per_s=25e9)),
        ("900GB/s+3.2Tb/s", Interconnect(900e9, between_bytes_per_s=400e9)),
        ("nvlink+100Gb/s x4", Interconnect(between_bytes_per_s=12.5e9, gpus_per_machine=4)),
    ],
)
def test_a_text_is_read(text: str, links: Interconnect) -> None:
    assert parse_interconnect(text) == links


@pytest.mark.parametrize("text", ["", "fast", "400", "0Gb/s", "nvlink+pcie", "1Gb/s+1Gb/s+1Gb/s",
                                  "nvlink x0", "400Gb/s xy"])  # fmt: skip
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"expected such as 'nvlink'"):
        parse_interconnect(text)


def test_networks_are_those_of_the_makers_machines() -> None:
    links = default_interconnect()
    rates = {name: links.network(find_gpu(name)) for name in ("a100-80gb", "h100-80gb", "l40s")}
    assert [rate * 8e-9 for rate, _ in rates.values()] == [200, 400, 100]
    assert all("assumed" in note for _, note in rates.values())
    assert Interconnect(between_bytes_per_s=1e9).network(find_gpu("h100")) == (1e9, "")
