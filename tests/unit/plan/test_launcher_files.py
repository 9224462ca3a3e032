"""What is written for Accelerate and DeepSpeed: all of a sharding, and the rest as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ullage.ground.errors import SpecError
from ullage.search.launchers.accelerate_file import accelerate_config, to_yaml
from ullage.search.launchers.launched import deepspeed_config, read_deepspeed_config
from ullage.search.launchers.shardings import (
    SHARDINGS,
    Engine,
    OnHost,
    Sharding,
    splitting_sequences,
)

DDP = Sharding(Engine.DDP, 0)
FSDP2 = Sharding(Engine.FSDP2, 3)
ZERO3 = Sharding(Engine.DEEPSPEED, 3)
KINDS = ["LlamaDecoderLayer"]


def written(sharding: Sharding, own: dict[str, Any] | None = None) -> dict[str, Any]:
    """Accelerate's configuration for four ranks."""
    return accelerate_config(own or {}, sharding, 4, KINDS)


def test_every_sharding_has_a_name_of_its_own() -> None:
    names = [one.name for each in SHARDINGS for one in (each, each.checkpointed)]
    assert len(set(names)) == len(names)
    assert Sharding(Engine.DEEPSPEED, 3, OnHost.OPTIMIZER).name == "ZeRO 3, optimizer on the host"


def test_every_sharding_can_be_written_and_no_two_are_alike() -> None:
    texts = [to_yaml(written(one)) for one in SHARDINGS]
    assert len(set(texts)) == len(SHARDINGS)


def test_fsdp2_gathers_block_by_block() -> None:
    config = written(FSDP2)
    assert (config["distributed_type"], config["num_processes"]) == ("FSDP", 4)
    said = config["fsdp_config"]
    assert said["fsdp_version"] == 2
    assert said["fsdp_reshard_after_forward"] is True
    assert said["fsdp_offload_params"] is False
    assert said["fsdp_activation_checkpointing"] is False
    assert said["fsdp_auto_wrap_policy"] == "TRANSFORMER_BASED_WRAP"
    assert said["fsdp_transformer_layer_cls_to_wrap"] == "LlamaDecoderLayer"
    assert written(FSDP2.checkpointed)["fsdp_config"]["fsdp_activation_checkpointing"] is True
    kept = written(Sharding(Engine.FSDP2, 2))["fsdp_config"]
    assert kept["fsdp_reshard_after_forward"] is False
    with pytest.raises(SpecError, match="the class of the program's blocks"):
        accelerate_config({}, FSDP2, 4, [])


def test_ranks_that_split_sequences_shard_the_model_too() -> None:
    config = written(splitting_sequences(4))
    assert config["parallelism_config"] == {"parallelism_config_cp_size": 4}
    del config["parallelism_config"]
    assert config == written(FSDP2)
    with pytest.raises(SpecError, match="leave it out"):
        written(FSDP2, {"parallelism_config": {"parallelism_config_cp_size": 2}})


def test_zero_says_what_lies_on_the_host() -> None:
    devices = [
        (said["zero_stage"], said["offload_optimizer_device"], said["offload_param_device"])
        for said in (
            written(Sharding(Engine.DEEPSPEED, stage, on_host))["deepspeed_config"]
            for stage, on_host in ((2, OnHost.NOTHING), (2, OnHost.OPTIMIZER), (3, OnHost.ALL))
        )
    ]
    assert devices == [(2, "none", "none"), (2, "cpu", "none"), (3, "cpu", "cpu")]


def test_what_a_configuration_says_beside_stays() -> None:
    own = {
        "distributed_type": "DEEPSPEED",
        "mixed_precision": "bf16",
        "num_machines": 2,
        "main_process_port": 29501,
        "deepspeed_config": {
            "gradient_clipping": 1.0,
            "zero_stage": 2,
            "offload_optimizer_device": "nvme",
            "offload_optimizer_nvme_path": "/fast",
        },
        "fsdp_config": {
            "fsdp_version": 1,
            "fsdp_sharding_strategy": 1,
            "fsdp_state_dict_type": "F",
        },
    }
    zero = written(Sharding(Engine.DEEPSPEED, 3, OnHost.OPTIMIZER), own)
    assert (zero["mixed_precision"], zero["num_machines"]) == ("bf16", 2)
    assert zero["main_process_port"] == 29501
    assert zero["deepspeed_config"]["gradient_clipping"] == 1.0
    assert zero["deepspeed_config"]["zero_stage"] == 3
    assert zero["deepspeed_config"]["offload_optimizer_device"] == "nvme"
    assert written(ZERO3, own)["deepspeed_config"]["offload_optimizer_device"] == "none"
    fsdp = written(FSDP2, own)
    assert "deepspeed_config" not in fsdp
    assert fsdp["fsdp_config"]["fsdp_state_dict_type"] == "F"
    assert "fsdp_sharding_strategy" not in fsdp["fsdp_config"]
    assert not {"deepspeed_config", "fsdp_config"} & set(written(DDP, own))


@pytest.mark.parametrize(
    ("own", "sharding", "said"),
    [
        ({"distributed_type": "XLA"}, DDP, "is for XLA"),
        (
            {"deepspeed_config": {"deepspeed_config_file": "ds.json"}},
            ZERO3,
            "deepspeed_config_file",
        ),
        ({}, DDP.checkpointed, "DDP, checkpointing cannot be said"),
        ({}, ZERO3.checkpointed, "ZeRO 3, checkpointing cannot be said"),
    ],
)
def test_what_cannot_be_said_to_accelerate_is_refused(
    own: dict[str, Any], sharding: Sharding, said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        written(sharding, own)


def test_yaml_is_read_as_it_was_meant() -> None:
    yaml = pytest.importorskip("yaml")
    config = {
        "text": "LlamaDecoderLayer", "no": "no", "off": "off", "number": "1", "float": "1e-4",
        "two": "A,B", "path": "/tmp/x y", "odd": 'a: "b" # c', "none": None, "is": True, "count": 8,
        "list": ["a", 1], "empty": {}, "section": {"inner": {"deep": False}},
    }  # fmt: skip
    assert yaml.safe_load(to_yaml(config)) == config


def test_deepspeeds_own_words_stay(tmp_path: Path) -> None:
    own = {
        "train_micro_batch_size_per_gpu": "auto",
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 1,
            "overlap_comm": True,
            "offload_param": {"device": "cpu"},
            "offload_optimizer": {"device": "nvme", "nvme_path": "/fast"},
        },
    }
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(own))
    found = read_deepspeed_config(str(file))
    assert found == own
    plain = deepspeed_config(own, ZERO3)
    assert plain["zero_optimization"] == {"stage": 3, "overlap_comm": True}
    assert {key: plain[key] for key in own if key != "zero_optimization"} == {
        "train_micro_batch_size_per_gpu": "auto",
        "bf16": {"enabled": True},
    }
    everything = deepspeed_config(own, Sharding(Engine.DEEPSPEED, 3, OnHost.ALL))
    said = everything["zero_optimization"]
    assert said["offload_optimizer"] == {"device": "nvme", "nvme_path": "/fast"}
    assert said["offload_param"] == {"device": "cpu"}
    assert everything["zero_force_ds_cpu_optimizer"] is False
    fresh = deepspeed_config({}, Sharding(Engine.DEEPSPEED, 2, OnHost.OPTIMIZER))
    assert fresh["zero_optimization"] == {
        "stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True},
    }  # fmt: skip


@pytest.mark.parametrize("sharding", [DDP, FSDP2, ZERO3.checkpointed])
def test_what_cannot_be_said_to_deepspeed_is_refused(sharding: Sharding) -> None:
    with pytest.raises(SpecError, match=f"{sharding.name} cannot be said"):
        deepspeed_config({}, sharding)


def test_a_word_that_names_something_else_is_no_configuration(tmp_path: Path) -> None:
    for name, text in (("a.json", '{"lr": 1}'), ("b.json", "[1]"), ("c.txt", "{}")):
        (tmp_path / name).write_text(text)
        assert read_deepspeed_config(str(tmp_path / name)) is None
    assert read_deepspeed_config("missing.json") is None
    (tmp_path / "d.json").write_text("{")
    with pytest.raises(SpecError, match="is not JSON"):
        read_deepspeed_config(str(tmp_path / "d.json"))
