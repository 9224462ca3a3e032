"""The examples run as they are, and end as they would on that GPU: with room, or out of memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "ullage"
MIB = 2**20
EXAMPLES = {
    "gpt2": ("gpt2/train.py",),
    "llama_trainer": ("llama_trainer/train.py",),
    "resnet50": ("resnet50/train.py",),
    "vit_lightning": ("vit_lightning/train.py",),
    "bert_accelerate": ("bert_accelerate/train.py",),
    "unet_diffusers": ("unet_diffusers/train.py",),
    "generate": ("generate/generate.py",),
    "lstm": ("lstm/train.py",),
    "moe": ("moe/train.py",),
    "mlp_phases": ("mlp_phases/train.py",),
    "residual_net": ("residual_net/train.py",),
    "residual_net_checkpoint": ("residual_net/train.py", "--checkpoint"),
    "massive_mimo": ("massive_mimo/simulate.py",),
    "massive_mimo_mmse": ("massive_mimo/simulate.py", "--precoder", "mmse"),
    "growing_losses": ("growing_losses/train.py",),
    "out_of_memory": ("out_of_memory/train.py",),
    "halve_batch": ("out_of_memory/halve_batch.py",),
}
GPUS = ("h100-80gb", "a100-80gb", "rtx-4090", "t4")
# Shorter sequences: as the tests of owners run it, so that it runs once for both.
SHORT_LLAMA = ("llama_trainer/train.py", "--seq-len", "256")
# The end of each on an H100, and on every GPU of which nothing else is said.
ENDS = {"out_of_memory": "out_of_memory"}
# Where a few MiB decide: the program ends well, or runs out of memory.
CLOSE = {("halve_batch", "t4"), ("gpt2", "t4")}
# On a T4 attention in bfloat16 has no kernel of its own: it writes its scores out.
TOO_LARGE = {("llama_trainer", "t4"), ("unet_diffusers", "t4")}


def check_whole(outcome: Any) -> None:
    """A run document that holds together, and a snapshot that torch's viewer would open."""
    document, device = outcome.document, outcome.device
    assert document["verdict"] in {"fits", "out_of_memory"}
    assert document["exit_code"] == outcome.exit_code == (document["verdict"] != "fits")
    at_peak = device["at_peak"]
    assert sum(at_peak.values()) == device["peak_allocated_bytes"]
    assert at_peak["unattributed"] <= 0.05 * device["peak_allocated_bytes"]
    assert device["peak_requested_bytes"] <= device["peak_allocated_bytes"]
    assert device["peak_allocated_bytes"] <= device["peak_reserved_bytes"]
    assert {"segments", "device_traces", "ullage"} <= set(outcome.snapshot)


def check_failure(outcome: Any) -> None:
    """The exception of an out-of-memory as the program's author would see it on a real GPU."""
    oom = outcome.document["oom"]
    assert oom["message"].startswith("CUDA out of memory. Tried to allocate")
    assert oom["requested_bytes"] > 0 and oom["where"]
    traceback = outcome.stderr[outcome.stderr.index("Traceback (most recent call last)") :]
    assert "torch.OutOfMemoryError: CUDA out of memory." in traceback
    assert 'train.py", line' in traceback or 'halve_batch.py", line' in traceback
    assert str(SOURCE) not in traceback, "a frame of ours"


def check(outcome: Any, name: str, gpu: str) -> None:
    """The example ended as it should on that GPU."""
    check_whole(outcome)
    verdict = outcome.document["verdict"]
    if (name, gpu) not in CLOSE:
        expected = "out_of_memory" if (name, gpu) in TOO_LARGE else ENDS.get(name, "fits")
        assert verdict == expected
    if verdict == "fits":
        assert "Traceback" not in outcome.stderr
    else:
        check_failure(outcome)


@pytest.mark.slow(
    only=(
        "bert_accelerate",
        "generate",
        "llama_trainer",
        "moe",
        "resnet50",
        "unet_diffusers",
        "vit_lightning",
    )
)
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_on_an_h100(run_program: RunProgram, name: str) -> None:
    program = SHORT_LLAMA if name == "llama_trainer" else EXAMPLES[name]
    check(run_program(*program), name, "h100-80gb")


def test_an_example_that_halves_its_batch_says_how_often_it_ran_out(
    run_program: RunProgram,
) -> None:
    outcome = run_program(*EXAMPLES["halve_batch"])
    assert outcome.stderr.count("out of memory, trying batch") == outcome.device["num_ooms"] > 0
    assert any("caught it and went on" in warning for warning in outcome.document["warnings"])


@pytest.mark.nightly
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_on_every_gpu(run_program: RunProgram, name: str, gpu: str) -> None:
    check(run_program(*EXAMPLES[name], gpu=gpu), name, gpu)


def test_every_example_is_run() -> None:
    programs = {
        path.relative_to(ROOT / "examples").as_posix()
        for path in (ROOT / "examples").rglob("*.py")
        if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
    }
    # A server runs until it is stopped: `ullage check` plays it, as ullage.toml says.
    assert {program for program, *_ in EXAMPLES.values()} == programs - {"serving/serve.py"}


# ---- Sizes worked out by hand. Blocks are multiples of 512 B; the shapes of the textbook examples
# are such that no block is larger than that (up to 1 MiB, or whole multiples of 2 MiB).


def printed_numbers(outcome: Any, pattern: str) -> list[int]:
    """The numbers that a program printed, one for each match of a pattern with one group."""
    found = re.findall(pattern, outcome.stderr, re.MULTILINE)
    assert found, f"nothing printed like {pattern!r}:\n{outcome.stderr}"
    return [int(text.replace(",", "")) for text in found]


def test_an_mlp_holds_what_its_shapes_say_after_each_phase(run_program: RunProgram) -> None:
    outcome = run_program(*EXAMPLES["mlp_phases"])
    found = re.findall(r"^(.{18}) allocated +([\d,]+)  peak +([\d,]+)$", outcome.stderr, re.M)
    held = {name.strip(): int(now.replace(",", "")) for name, now, _ in found}
    # Weights of 1024 x 4096, 4096 x 4096 and 4096 x 1024 numbers of 4 bytes, and their biases.
    parameters = (16 + 64 + 16) * MIB + 4 * (4096 + 4096 + 1024)
    batch = 512 * 1024 * 4 + 512 * 8  # images, and labels of 8 bytes
    # Two hidden layers after their ReLU and the logarithms of the softmax; the total weight that
    # cross-entropy keeps. The loss itself, in a block like that one, outlives backward.
    saved = 2 * (512 * 4096 * 4) + 512 * 1024 * 4 + 512
    loss = 512

    assert held["init"] == 0
    assert held["to device"] == parameters
    assert held["step 0  input"] == parameters + batch
    # Scratch memory of cuBLAS comes with the first product, in most versions of torch to stay.
    scratch = outcome.device["at_peak"]["workspace"]
    assert held["step 0  update"] == 4 * parameters + batch + loss + scratch
    assert held["step 0  update"] - held["step 0  backward"] == 2 * parameters
    start = 3 * parameters + scratch
    assert held["step 0  zero_grad"] == start
    assert held["step 1  input"] == start + batch
    assert held["step 1  forward"] == start + batch + saved + loss
    assert held["step 1  backward"] == start + batch + loss + parameters
    assert held["step 1  update"] == held["step 1  backward"]
    assert held["step 1  zero_grad"] == start


def test_the_owners_of_an_mlps_peak_are_its_shapes(run_program: RunProgram) -> None:
    at_peak = dict(run_program(*EXAMPLES["mlp_phases"]).device["at_peak"])
    parameters = (16 + 64 + 16) * MIB + 4 * (4096 + 4096 + 1024)
    del at_peak["workspace"]
    # In Adam's update: one more number a parameter, the root of the second moment.
    assert {owner: size for owner, size in at_peak.items() if size} == {
        "parameter": parameters,
        "gradient": parameters,
        "optimizer_state": 2 * parameters,
        "temporary": parameters,
        "input": 512 * 1024 * 4 + 512 * 8,
        "activation": 512,  # the loss
    }


@pytest.mark.parametrize(("name", "maps_per_block"), [
    # The inputs of the two batch norms and of the two convolutions.
    ("residual_net", 4),
    # The input of the block.
    ("residual_net_checkpoint", 1),
])  # fmt: skip
def test_a_residual_net_keeps_its_feature_maps(
    run_program: RunProgram, name: str, maps_per_block: int
) -> None:
    kept = printed_numbers(run_program(*EXAMPLES[name]), r"kept for backward ([\d,]+)")
    feature_map = 128 * 64 * 32 * 32 * 4
    statistics = 2 * 512 if maps_per_block == 4 else 0  # of a batch norm: 64 means, 64 deviations
    # The mean over the image, the logarithms of the softmax over 10 classes, the total weight. The
    # loss takes the place of the step before's.
    head = 128 * 64 * 4 + 128 * 10 * 4 + 512
    blocks = 20 * (maps_per_block * feature_map + 2 * statistics)
    assert kept[1:] == [blocks + head] * 2


def test_checkpointing_divides_the_peak_of_a_residual_net_by_three(run_program: RunProgram) -> None:
    whole, checkpointed = (
        run_program(*EXAMPLES[name]).device["at_peak"]
        for name in ("residual_net", "residual_net_checkpoint")
    )
    parts = ("activation", "temporary")  # what a block computes again in backward is temporary
    feature_map = 128 * 64 * 32 * 32 * 4
    sizes = [sum(at_peak[part] for part in parts) for at_peak in (whole, checkpointed)]
    # Of all blocks; of one block, its input among those of all; and two gradients on their way.
    assert sizes[0] == pytest.approx((4 * 20 + 2) * feature_map, rel=0.02)
    assert (20 + 3 + 1) * feature_map <= sizes[1] <= 1.01 * (20 + 3 + 3) * feature_map


@pytest.mark.parametrize("name", ["massive_mimo", "massive_mimo_mmse"])
def test_a_massive_mimo_simulation_holds_its_complex_tensors(
    run_program: RunProgram, name: str
) -> None:
    outcome = run_program(*EXAMPLES[name])
    events = outcome.record.events
    channel = 1000 * 16 * 64 * 8
    assert channel == 8_192_000 == 512 * 16_000
    # In each of three steps at least: the channel, the solution, the precoder.
    assert sum(events.size_bytes == channel) >= 3 * 3 * 2  # given out and taken back
    symbols, signal, bits = 1000 * 16 * 14 * 8, 1000 * 64 * 14 * 8, 2 * 1000 * 16 * 14
    # Live when the users receive: channel, precoder, bits, symbols, noise, what the antennas send,
    # and the product.
    received = 2 * channel + bits + 3 * symbols + signal
    held = outcome.device["at_peak"]["activation"] + outcome.device["at_peak"]["temporary"]
    # A library may copy a conjugated operand.
    assert received <= held <= received + channel
    assert outcome.device["at_peak"]["unattributed"] == 0


def test_a_list_of_losses_grows_by_the_same_bytes_every_step(run_program: RunProgram) -> None:
    outcome = run_program(*EXAMPLES["growing_losses"])
    held = printed_numbers(outcome, r"^step \d+  allocated ([\d,]+)")
    # Input and output of two GELUs, the logarithms of the softmax, the loss and the total weight.
    graph = 4 * (1024 * 4096 * 4) + 1024 * 1024 * 4 + 2 * 512
    assert [later - now for now, later in pairwise(held)] == [graph] * 7
    peaks = [step["peak_allocated_bytes"] for step in outcome.device["steps"][:8]]
    assert [later - now for now, later in pairwise(peaks)] == [graph] * 7
    assert outcome.device["growth_bytes_per_step"] == graph
    assert [each["code"] for each in outcome.document["processes"][0]["findings"]] == ["UL111"]
    assert not any("still differ" in warning for warning in outcome.document["warnings"])


def test_a_list_of_numbers_does_not_grow(run_program: RunProgram) -> None:
    outcome = run_program(*EXAMPLES["growing_losses"], "--detach")
    held = printed_numbers(outcome, r"^step \d+  allocated ([\d,]+)")
    assert len(set(held)) == 1
    assert outcome.device["growth_bytes_per_step"] == 0


@pytest.mark.slow
def test_a_kv_cache_grows_by_its_shape_for_every_token(run_program: RunProgram) -> None:
    outcome = run_program(*EXAMPLES["generate"])
    cache = printed_numbers(outcome, r"tokens read  cache ([\d,]+)")
    held = printed_numbers(outcome, r"tokens read  .* allocated ([\d,]+)")
    # 8 sequences; keys and values of 16 layers with 8 heads of 64 numbers of 2 bytes.
    token = 8 * 2 * 16 * 8 * 64 * 2
    assert cache == [num_tokens * token for num_tokens in (1024, 1028, 1032, 1036)]
    assert held[-1] - held[0] == pytest.approx(12 * token, rel=0.05)
    # The peak is that of the prompt.
    assert outcome.device["at_peak"]["kv_cache"] == 1024 * token


BERT_LAYER = 4 * (768 * 768 + 768) + 768 * 3072 + 3072 + 3072 * 768 + 768 + 2 * (2 * 768)
VIT_LAYER = 4 * (384 * 384 + 384) + 384 * 1536 + 1536 + 1536 * 384 + 384 + 2 * (2 * 384)
MOE_LAYER = 4 * 512 * 512 + 512 * 8 + 2 * 8 * 512 * 2048 + 2 * (2 * 512)
NUM_PARAMETERS = {
    # Tokens, positions, kinds of token and a norm; layers; the pooler; two classes.
    "bert_accelerate": (30522 + 512 + 2) * 768 + 2 * 768 + 12 * BERT_LAYER
    + 768 * 768 + 768 + 2 * 768 + 2,
    # Patches of 16 x 16 x 3, a token for the class, 197 positions; layers; a norm; 1000 classes.
    "vit_lightning": 16 * 16 * 3 * 384 + 384 + 384 + 197 * 384 + 12 * VIT_LAYER + 2 * 384
    + 384 * 1000 + 1000,
    # Embedding and output layer; layers; a norm.
    "moe": 2 * 32000 * 512 + 6 * MOE_LAYER + 2 * 512,
    # An embedding that is the output layer too, its bias; two layers of four gates.
    "lstm": 10_000 * 1500 + 10_000 + 2 * (2 * 6000 * 1500 + 2 * 6000),
}  # fmt: skip


@pytest.mark.slow(but=("lstm",))
@pytest.mark.parametrize("name", NUM_PARAMETERS)
def test_parameters_and_optimizer_states_have_the_size_of_the_model(
    run_program: RunProgram, name: str
) -> None:
    at_peak = run_program(*EXAMPLES[name]).device["at_peak"]
    num_bytes = 4 * NUM_PARAMETERS[name]
    # Rounded up per tensor, at most to the next 2 MiB where a block was not worth splitting.
    assert num_bytes <= at_peak["parameter"] <= 1.02 * num_bytes + 2 * MIB
    num_states = 0 if name == "lstm" else 2  # plain SGD; AdamW
    assert num_states * num_bytes <= at_peak["optimizer_state"]
    assert at_peak["optimizer_state"] <= num_states * (1.03 * num_bytes + 2 * MIB)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit_lightning", "bert_accelerate", "unet_diffusers", "moe"])
def test_a_step_of_a_training_library_has_its_phases(run_program: RunProgram, name: str) -> None:
    device = run_program(*EXAMPLES[name]).device
    # Lightning calls forward and backward from within the optimizer's step.
    assert [set(step["phases"]) for step in device["steps"]] == [
        {"forward", "backward", "optimizer"}
    ] * 3
    at_peak = device["at_peak"]
    assert max(at_peak, key=at_peak.get) == "activation"


def test_experts_of_fixed_capacity_leave_no_shape_to_assume(run_program: RunProgram) -> None:
    outcome = run_program(*EXAMPLES["moe"])
    made = outcome.document["basis"]["allocator"]["assumptions"]
    kinds = {each["what"].partition(":")[0] for each in made if each["where"]}
    assert kinds == {"experts that a router chooses", "host read, answered plausibly"}
