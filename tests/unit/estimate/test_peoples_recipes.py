"""The recipes that people train with: adapters, masters, losses, versions, other libraries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from benchmarks.accuracy.estimate import cases_decoders as published

import ullage
from ullage.answers.text import render
from ullage.facts.families.builtin import find_model
from ullage.facts.families.config import Config
from ullage.facts.gpus.catalog import find_entry, find_gpu, load_catalog
from ullage.ground.errors import SpecError
from ullage.log.category import Category
from ullage.players.eager.training.answer import Answer, find_knobs, find_largest, rank_gpus
from ullage.players.eager.training.devices import find_context, find_nccl
from ullage.players.eager.training.estimate import TrainingEstimate, estimate_training
from ullage.players.eager.training.layout import Layout
from ullage.players.eager.training.recipe import Lora, Recipe
from ullage.players.eager.training.torch_version import choose_torch, has_code, parse_torch
from ullage.verbs.estimate.text import estimate_blocks, estimate_line

H100 = find_gpu("h100-80gb")
LLAMA = find_model("llama-3.2-1b").config
GPT2 = find_model("gpt2").config
PLAIN = Recipe(batch=1, length=512)
GPU = find_gpu("a100-40gb")  # which old versions have code for
MIB = 2**20


def estimate(model: str = "llama-3.2-1b", **fields: Any) -> TrainingEstimate:
    recipe = replace(PLAIN, **fields)
    return estimate_training(find_model(model).config, recipe, H100)


def tensors(found: TrainingEstimate) -> int:
    """Bytes of tensors at the peak."""
    return sum(term.bytes for term in found.terms if term.category is not Category.UNATTRIBUTED)


def at_step(found: TrainingEstimate) -> int:
    """Bytes a parameter when the optimizer steps, beside its temporaries."""
    names = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)
    moment = found.peaks["optimizer"].requested_by_category
    return round(sum(moment.get(name, 0) for name in names) / found.num_parameters)


@pytest.mark.parametrize(
    ("fields", "bytes_each"),
    [
        ({"precision": "bf16"}, 8),
        ({"precision": "fp32"}, 16),
        ({"precision": "mixed-bf16"}, 16),
        ({"precision": "mixed-bf16", "gradients": "fp32"}, 18),
        ({"precision": "mixed-fp16", "gradients": "both"}, 20),
    ],
)
def test_masters_take_what_megatron_and_deepspeed_say(
    fields: dict[str, str], bytes_each: int
) -> None:
    assert at_step(estimate("gpt2", optimizer="adamw-fused", **fields)) == bytes_each


def test_sharded_masters_are_divided_and_gathered_in_16_bits() -> None:
    layout = Layout(data=8, sharding="fsdp")
    mixed = estimate(precision="mixed-bf16", layout=layout)
    single = estimate(precision="fp32", layout=layout)
    states = [
        found.peaks["optimizer"].requested_by_category[Category.OPTIMIZER_STATE]
        for found in (mixed, single)
    ]
    assert states[0] == states[1]
    assert tensors(mixed) < tensors(single)


def test_gradients_of_their_own_take_masters() -> None:
    with pytest.raises(SpecError, match="mixed-bf16"):
        Recipe(gradients="fp32")


def test_each_loss_keeps_less_than_the_one_before() -> None:
    sizes = [tensors(estimate(loss=loss, length=2048)) for loss in ("full", "chunked", "fused")]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3


def test_checkpoints_that_keep_every_second_product_lie_between() -> None:
    kinds = ("none", "selective", "alternate", "full")
    sizes = [
        estimate(checkpointing=kind, length=4096)
        .peaks["backward"]
        .by_category.get(Category.ACTIVATION, 0)
        for kind in kinds
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4


def test_late_zeroing_adds_the_gradients_to_the_forward_pass() -> None:
    late, plain = estimate(zeroes_late=True), estimate()
    more = late.peaks["forward"].allocated_bytes - plain.peaks["forward"].allocated_bytes
    assert more == pytest.approx(2 * plain.num_parameters, rel=0.01)


def test_a_compiled_block_keeps_less() -> None:
    assert tensors(estimate(compiled=True, length=2048)) < tensors(estimate(length=2048))


@pytest.mark.parametrize(
    ("hidden", "inner", "kv_heads", "bytes_each"),
    [
        (1024, 4096, 4, 41032),
        (1024, 8192, 4, 65608),
        (2048, 4096, 4, 57416),
        (1024, 4096, 16, 41032),
    ],
)
def test_a_compiled_layer_keeps_what_the_partitioner_does(
    hidden: int, inner: int, kv_heads: int, bytes_each: int
) -> None:
    """Bytes a token, of Llama's layers on the phantom: torch 2.15, the backend
    aot_eager_decomp_partition, which has Inductor's partitioner.
    """
    fields = {
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": kv_heads,
        "vocab_size": 1024,
    }  # fmt: skip
    recipe = Recipe(batch=4, length=1024, compiled=True)
    kept = [
        estimate_training(Config("llama", {**fields, "num_hidden_layers": count}), recipe, H100)
        .peaks["forward"]
        .requested_by_category[Category.ACTIVATION]
        for count in (8, 9)
    ]
    assert (kept[1] - kept[0]) / (4 * 1024) == pytest.approx(bytes_each, rel=0.001)


def test_packed_samples_keep_a_mask_for_each() -> None:
    assert tensors(estimate(packed=True, length=4096)) > tensors(estimate(length=4096))


def test_what_a_model_cannot_change_is_refused() -> None:
    for fields in ({"loss": "fused"}, {"packed": True}):
        with pytest.raises(SpecError, match="decoder"):
            estimate("bert-base", **fields)


def test_buckets_that_hold_the_gradients_are_there_in_the_forward_pass() -> None:
    """Copies are there beside the gradients at the optimizer's step, too."""
    peaks = {
        buckets: estimate(layout=Layout(data=4, buckets=buckets)).peaks
        for buckets in ("copies", "views", "none")
    }
    size = 2 * estimate().num_parameters

    def more(phase: str, buckets: str) -> int:
        return peaks[buckets][phase].requested_bytes - peaks["none"][phase].requested_bytes

    assert more("forward", "views") == more("forward", "copies")
    assert more("forward", "views") == pytest.approx(size, rel=0.01)
    assert more("optimizer", "views") == pytest.approx(0, abs=0.01 * size)
    assert more("optimizer", "copies") == pytest.approx(size, rel=0.01)


def test_the_rank_alone_makes_adapters() -> None:
    by_rank = ullage.estimate_training("llama-3.2-1b", length=512, lora=8)
    whole = ullage.estimate_training(
        "llama-3.2-1b", length=512, lora=8, lora_targets=("q_proj", "v_proj"), lora_dropout=0
    )
    assert by_rank.document == whole.document


def test_adapters_in_16_bits_keep_no_copies_in_32() -> None:
    wide, narrow = (estimate(lora=Lora(dtype=dtype)) for dtype in (None, "bf16"))
    assert tensors(narrow) < tensors(wide)
    assert any("float32" in line for line in wide.assumptions)
    assert any("bfloat16" in line for line in narrow.assumptions)


def test_libraries_quantize_what_they_do() -> None:
    lora = Lora(targets=("q_proj",), is_quantized=True)
    weights = {
        library: next(
            term.bytes
            for term in estimate("llama-3.1-8b", lora=lora, library=library).terms
            if term.name == "parameters"
        )
        for library in ("transformers", "litgpt", "torchtune")
    }
    assert weights["litgpt"] < weights["torchtune"] < weights["transformers"]


def test_scales_that_are_not_quantized_take_more() -> None:
    double, plain = (
        tensors(estimate(lora=Lora(is_quantized=True, has_double_scales=has)))
        for has in (True, False)
    )
    assert plain > double


def test_old_bitsandbytes_kept_inputs_until_the_next_loss() -> None:
    lora = Lora(is_quantized=True)
    old, new = (tensors(estimate(lora=lora, torch=torch)) for torch in ("2.5", "2.6"))
    assert old > new


def test_a_library_is_asked_only_for_models_that_it_has() -> None:
    with pytest.raises(SpecError, match="litgpt"):
        estimate("bert-base", library="litgpt")


# What benchmarks/accuracy/estimate/train_plain.py asks for at its peak, on the phantom.
@pytest.mark.parametrize(
    ("batch", "length", "checkpointing", "peak_bytes"),
    [
        (2, 512, "none", 151_021_060),
        (2, 512, "full", 85_206_020),
        (1, 2048, "full", 243_787_268),
    ],
)
def test_a_softmax_by_hand_has_the_temporaries_of_its_division(
    batch: int, length: int, checkpointing: str, peak_bytes: int
) -> None:
    fields = {
        "model_type": "llama", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 640,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
    }  # fmt: skip
    recipe = Recipe(
        batch=batch, length=length, checkpointing=checkpointing, library="plain", attention="eager"
    )
    found = estimate_training(Config("plain", fields), recipe, H100)
    assert found.peak.requested_bytes == pytest.approx(peak_bytes, rel=0.01)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("sequence", [False, True])
def test_a_layer_of_megatron_keeps_what_its_authors_say(
    ranks: int,
    sequence: bool,  # noqa: FBT001
) -> None:
    # Korthikanti et al. 2022, arXiv:2205.05198, equations 2 and 4, bytes in 16 bits.
    length, batch, hidden, heads = 1024, 4, 1024, 16
    scores = 5 * heads * length / hidden
    factor = (34 + scores) / ranks if sequence else 10 + (24 + scores) / ranks
    kept = []
    for layers in (8, 16):
        fields = {
            "model_type": "gpt2", "n_embd": hidden, "n_head": heads, "n_positions": length,
            "vocab_size": 51200, "n_layer": layers,
        }  # fmt: skip
        layout = Layout(tensor=ranks, sequence=sequence)
        recipe = Recipe(
            batch=batch, length=length, library="megatron", attention="eager", layout=layout
        )
        found = estimate_training(Config("gpt", fields), recipe, H100)
        kept.append(found.peaks["backward"].requested_by_category[Category.ACTIVATION])
    expected = length * batch * hidden * factor
    assert (kept[1] - kept[0]) / 8 == pytest.approx(expected, rel=0.001)


def test_gemma_2_of_litgpt_keeps_its_scores() -> None:
    # litgpt at 04205815, litgpt/model.py: of each score do_softcapping keeps 2 bytes, softmax in
    # float32 4, and its cast 2; the head is a matrix of its own.
    fields = published.GEMMA2_2B
    kept = {}
    for length in (1024, 2048):
        found = estimate_training(
            Config("gemma", fields), Recipe(batch=1, length=length, library="litgpt"), H100
        )
        kept[length] = found.peaks["backward"].requested_by_category[Category.ACTIVATION]
        head = fields["vocab_size"] * fields["hidden_size"]
        assert found.num_parameters == 2_614_341_888 + head
    heads = fields["num_attention_heads"] * fields["num_hidden_layers"]
    scores = 8 * heads * (2048**2 - 2 * 1024**2)
    assert kept[2048] - 2 * kept[1024] == pytest.approx(scores, rel=0.001)


def test_megatron_divides_a_model_that_others_cannot() -> None:
    found = {
        ranks: tensors(estimate("gpt2", library="megatron", layout=Layout(tensor=ranks)))
        for ranks in (1, 2, 4)
    }
    assert found[1] > found[2] > found[4] > found[1] / 4
    with pytest.raises(SpecError, match="n_head"):
        estimate("gpt2", library="megatron", layout=Layout(tensor=5))


@pytest.mark.parametrize(
    ("capability", "newest"), [((6, 0), (2, 7)), ((7, 0), (2, 10)), ((9, 0), (2, 15))]
)
def test_the_newest_torch_with_code_for_a_gpu_is_taken(
    capability: tuple[int, int], newest: tuple[int, int]
) -> None:
    assert choose_torch(None, capability) == newest
    assert has_code(newest, capability)


def test_a_torch_without_code_for_the_gpu_is_refused() -> None:
    with pytest.raises(SpecError, match=r"no code for compute capability 7\.0; take 2\.10"):
        estimate_training(GPT2, replace(PLAIN, torch="2.15"), find_gpu("v100-16gb"))


@pytest.mark.parametrize("text", ["new", "2", "9.0", "0.4"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="torch"):
        parse_torch(text)


def test_before_lazy_loading_a_context_had_all_kernels() -> None:
    old, new = (find_context(find_gpu("a100-40gb"), torch) for torch in ((1, 12), (2, 0)))
    assert old.likely - new.likely > 1200 * MIB
    assert old.low < old.likely < old.high


def test_softmax_kept_its_input_before_torch_1_11() -> None:
    recipe = replace(PLAIN, attention="eager", precision="fp32")
    older, old = (
        tensors(
            estimate_training(find_model("bert-base").config, replace(recipe, torch=torch), GPU)
        )
        for torch in ("1.10", "1.12")
    )
    heads, layers = 12, 12
    scores = 4 * heads * recipe.batch * (recipe.length or 0) ** 2
    assert older - old >= 0.9 * layers * scores


def test_ranks_pay_for_nccl() -> None:
    found = estimate(layout=Layout(data=8))
    nccl = next(term for term in found.terms if term.name == "NCCL")
    assert nccl.bytes == 900 * MIB
    assert not any(term.name == "NCCL" for term in estimate().terms)
    assert find_nccl(H100, (2, 6), 8).high > find_nccl(H100, (2, 7), 8).high


@pytest.mark.parametrize("name", ["mi300x", "apple-m3-max"])
def test_gpus_without_cuda_are_estimated_too(name: str) -> None:
    found = estimate_training(LLAMA, PLAIN, find_entry(name))
    assert found.fits and found.gpu == name
    line = f"fits on {name}, counted as CUDA, "
    assert estimate_line(Answer(found)).startswith(line)
    largest = Answer(found, largest=find_largest(LLAMA, PLAIN, find_entry(name), "batch"))
    assert f"Largest batch that fits on {name}, counted as CUDA: " in render(
        estimate_blocks(largest)
    )
    assert any("compared with nothing" in line for line in found.assumptions)


def test_a_ranking_leaves_out_gpus_that_the_torch_has_no_code_for() -> None:
    rows = rank_gpus(GPT2, replace(PLAIN, torch="2.12"), load_catalog())
    assert {"h100-80gb"} <= {row.gpu for row in rows}
    assert not {row.gpu for row in rows} & {"v100-16gb", "p100-16gb"}


def test_knobs_offer_what_people_turn() -> None:
    names = {knob.name for knob in find_knobs(LLAMA, replace(PLAIN, length=4096), H100)}
    assert {"fused loss", "LoRA 16", "checkpointing full"} <= names
    adapted = replace(PLAIN, lora=Lora())
    assert "QLoRA" in {knob.name for knob in find_knobs(LLAMA, adapted, H100)}


def test_a_number_of_parameters_says_what_is_not_counted() -> None:
    found = ullage.estimate_training("13B", gpu="h200")
    assert any("activations, inputs" in line for line in found.answer.estimate.assumptions)
