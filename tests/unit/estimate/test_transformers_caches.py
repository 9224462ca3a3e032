"""transformers' caches are predicted to the byte, and its sectors to the sector.

Its answers are stored: benchmarks/serving/library.py asks the library itself.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from tests.rows import each

from ullage.facts.families.architecture import read_model
from ullage.facts.families.builtin import find_model
from ullage.facts.families.config import Config
from ullage.facts.families.layers import Cross, Latent, Model
from ullage.ground.errors import SpecError
from ullage.ground.units import MIB
from ullage.players.eager.serving.engines.transformers import generated_bytes, is_paged, lay_out

HERE = Path(__file__).parents[3] / "benchmarks" / "serving"
STORED = json.loads((HERE / "caches.json").read_text())
MODELS = STORED["models"]


def model(name: str) -> Model:
    return read_model(Config(name, MODELS[name]["config"]))


# For latent attention the library sizes pages by `head_dim`, which is the rotary part of a key
# there: such a cache does not hold the keys, so it is refused. Of Whisper it pages the decoder.
PAGED = [
    name
    for name, answer in STORED["models"].items()
    if "error" not in answer["flash"]
    and not any(isinstance(layer, Latent | Cross) for layer in model(name).layers)
]


@each(("name", "kind"), product(sorted(MODELS.keys() - {"whisper"}), ["dynamic", "static"]))
def test_the_cache_of_generate(name: str, kind: str) -> None:
    predicted_bytes = generated_bytes(model(name), STORED["batch"], STORED["prompt"] + 1)
    assert predicted_bytes == MODELS[name][kind]


@each("name", sorted(MODELS.keys() - {"whisper"}))
def test_right_after_a_prompt_windows_are_views_of_all_of_it(name: str) -> None:
    predicted_bytes = generated_bytes(
        model(name), STORED["batch"], STORED["prompt"], is_prompt=True
    )
    assert predicted_bytes == MODELS[name]["prompt"]


def test_a_long_prompt_of_gemma_3() -> None:
    gemma = read_model(find_model("gemma-3-1b").config)
    assert generated_bytes(gemma, 1, 8192, is_prompt=True) == 208 * MIB
    assert generated_bytes(gemma, 1, 8192) == 43 * MIB


def test_a_delta_net_keeps_its_state_in_32_bits() -> None:
    qwen = read_model(find_model("qwen3-next-80b-a3b").config)
    state = replace(qwen, layers=(qwen.layers[0],))
    assert generated_bytes(state, 1, 8192) == 8192 * 4 * 2 + 32 * 128 * 128 * 4 == 2_162_688


@each("name", MODELS)
def test_parameters_are_those_of_the_library_on_the_meta_device(name: str) -> None:
    assert model(name).parameters == MODELS[name]["parameters"]


@each(("name", "kind"), product(PAGED, ["flash", "sdpa"]))
def test_the_sectors_of_continuous_batching(name: str, kind: str) -> None:
    sectors = lay_out(model(name), 4096, batched=STORED["batched"], is_flash=kind == "flash")
    assert {
        "sectors": sectors.num_sectors(STORED["available"]),
        "sector_bytes": sectors.block_bytes,
    } == STORED["models"][name][kind]


@each("name", sorted(set(STORED["models"]) - set(PAGED)))
def test_what_the_library_does_not_page_is_refused(name: str) -> None:
    assert not is_paged(model(name))
    with pytest.raises(SpecError, match="continuous batching takes full and sliding"):
        lay_out(model(name), 4096)


def test_requests_share_sectors() -> None:
    sectors = lay_out(model("gpt_oss"), 300)
    alone = sectors.request_blocks
    assert sectors.users(1000 * sectors.block_bytes) >= 1000 // alone
    assert sectors.users(sectors.block_bytes * (alone - 1)) == 0


def test_there_are_many() -> None:
    assert len(STORED["models"]) >= 20
    assert len(PAGED) >= 15
