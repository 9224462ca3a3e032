"""What people say, and the runs that answer it. The prose is in docs/results/explain.md."""

from benchmarks.folklore.section import (
    Play,
    Row,
    Section,
    each,
    fewer_times,
    gb,
    held_each,
    kept,
    kept_ratio,
    layer,
    mib,
    optimizer,
    optimizers_part,
    peak,
    percent,
    printed,
    reported,
    saved,
    times,
    units,
)
from benchmarks.plans import closed_forms

TRAIN_1B = "train.py 1b --recipe bf16 --batch-size 4 --length 2048"

# fmt: off
SIZES = {
    "resnet50": Section(
        {"fp32": Play("images.py resnet50")},
        (
            Row("kept", "kept for backward", "6 GB", kept("fp32"), gb),
            Row("twice", "twice that", "", lambda runs: 2 * kept("fp32")(runs), gb),
            Row("peak", "the allocator's peak, with weights and momentum", "", peak("fp32"), gb),
            Row("used", "the whole device, at most", "", reported("fp32", "peak_used_bytes"), gb),
        ),
    ),
    "resnet18": Section(
        {"run": Play("images.py resnet18 --batch-size 128 --layers conv1,bn1,act1,maxpool")},
        (
            Row("conv", "first convolution, its output", "392 MB", layer("conv1", "out"), mib),
            Row("norm", "the batch norm after it adds", "", layer("bn1", "grown"), mib),
            Row("relu", "the ReLU after it, in place, adds", "", layer("act1", "grown"), mib),
            Row("pool", "max-pool, its output", "98 MB", layer("maxpool", "out"), mib),
            Row("indices", "max-pool adds, with its indices", "", layer("maxpool", "grown"), mib),
        ),
    ),
    "adam": Section(
        {
            "fp32": Play("train.py 7b"),
            "bf16": Play("train.py 7b --recipe bf16"),
            "lora": Play("train.py 7b --recipe bf16 --lora 16"),
        },
        (
            Row("fp32", "Adam's states, weights in fp32", "56 GB", optimizer("fp32"), gb),
            Row("bf16", "the same, weights in bf16", "", optimizer("bf16"), gb),
            Row("lora", "the same, LoRA of rank 16", "", optimizer("lora"), gb),
        ),
    ),
    "four-times": Section(
        {
            "infer": Play("infer.py 7b"),
            "bf16": Play("train.py 7b --recipe bf16"),
            "fp32": Play("train.py 7b"),
            "long": Play("train.py 7b --recipe bf16 --batch-size 4 --length 2048"),
            "lora": Play("train.py 7b --recipe bf16 --lora 16"),
            "lora-long": Play("train.py 7b --recipe bf16 --lora 16 --length 2048"),
            "lora-less": Play("train.py 7b --recipe bf16 --lora 16 --length 2048 --segments 32"),
        },
        (
            Row("infer", "weights in bf16", "14 GB", printed("infer", "weight_bytes"), gb),
            Row("prompt", "and a prompt of 2,048 tokens, peak", "", peak("infer"), gb),
            Row("bf16", "training, all in bf16, 16 tokens, peak", "56 GB", peak("bf16"), gb),
            Row("fp32", "the same, all in fp32", "", peak("fp32"), gb),
            Row("long", "all in bf16, batch 4 of 2,048 tokens, peak", "", peak("long"), gb),
            Row("lora", "LoRA of rank 16, 16 tokens, peak", "14 to 20 GB", peak("lora"), gb),
            Row("lora-long", "the same, 2,048 tokens", "", peak("lora-long"), gb),
            Row("lora-less", "the same, each layer checkpointed", "", peak("lora-less"), gb),
        ),
    ),
    "bytes-each": Section(
        {
            "bf16": Play("train.py 1b --recipe bf16"),
            "fp32": Play("train.py 1b"),
            "autocast": Play("train.py 1b --recipe autocast"),
            "masters": Play("train.py 1b --recipe masters"),
            "fp32-gradients": Play("train.py 1b --recipe fp32-gradients"),
            "both": Play("train.py 1b --recipe both-gradients"),
            "foreach": Play("train.py 1b --foreach"),
        },
        (
            Row("bf16", "all in bf16, AdamW", "", held_each("bf16"), each),
            Row("part", "bf16 and masters: the optimizer's part", "12", optimizers_part, each),
            Row("masters", "all of that", "16", held_each("masters"), each),
            Row("fp32-gradients", "gradients in fp32 instead", "18",
                held_each("fp32-gradients"), each),
            Row("both", "gradients in both", "20", held_each("both"), each),
            Row("fp32", "all in fp32, AdamW", "16", held_each("fp32"), each),
            Row("autocast", "the same under autocast", "", held_each("autocast"), each),
            Row("foreach", "all in fp32, AdamW as it is by default, at its peak", "",
                lambda runs: runs["foreach"].peak / runs["foreach"].said["parameters"], each),
        ),
    ),
    "int4": Section(
        {how: Play(f"quantised.py {how}")
         for how in ("int8", "int4-unpacked", "int4", "nf4", "nf4-double")},
        tuple(
            Row(how, what, said,
                lambda runs, how=how: runs[how].said["bytes"] / runs[how].said["numbers"],
                lambda figure: f"{figure:.3f} B")
            for how, what, said in (
                ("int8", "int8, a scale for each row", "1"),
                ("int4-unpacked", "int4 in a byte each, a scale for each 128", "1"),
                ("int4", "int4, two in a byte, a scale for each 128", "0.5"),
                ("nf4", "bitsandbytes NF4", "0.5"),
                ("nf4-double", "bitsandbytes NF4, doubly quantised", "0.5"),
            )
        ),
        needs="bitsandbytes",
    ),
    "gpt3": Section(
        {
            "infer": Play("infer.py gpt3", "--memory 1TiB"),
            "train": Play("train.py gpt3", "--memory 4TiB"),
        },
        (
            Row("weights", "weights in bf16", "350 GB", printed("infer", "weight_bytes"), gb),
            Row("cache", "keys and values of one prompt of 2,048 tokens", "",
                printed("infer", "cache_bytes"), gb),
            Row("peak", "reading that prompt, peak", "", peak("infer"), gb),
            Row("train", "training in fp32 or with autocast, AdamW, 16 tokens, peak", "",
                peak("train"), gb),
        ),
    ),
    "activations": Section(
        {
            "image": Play("images.py resnet50 --batch-size 1"),
            "images": Play("images.py resnet50"),
            "gpt2": Play("train.py gpt2 --batch-size 8 --length 1024"),
            "7b": Play("train.py 7b --recipe bf16 --length 2048"),
            "7b-more": Play("train.py 7b --recipe bf16 --batch-size 16 --length 2048"),
        },
        tuple(
            Row(name, what, "10x to 100x", kept_ratio(name), times)
            for name, what in (
                ("image", "ResNet-50, 1 image"),
                ("images", "ResNet-50, 32 images"),
                ("gpt2", "GPT-2, 8 x 1,024 tokens, fp32"),
                ("7b", "7B, 1 x 2,048 tokens, bf16"),
                ("7b-more", "7B, 16 x 2,048 tokens, bf16"),
            )
        ),
    ),
}

MEANS = {
    "amp": Section(
        {
            "images": Play("images.py resnet50 --batch-size 128"),
            "images-amp": Play("images.py resnet50 --batch-size 128 --amp"),
            "long": Play("train.py 1b --batch-size 4 --length 2048"),
            "long-amp": Play("train.py 1b --batch-size 4 --length 2048 --recipe autocast"),
            "short": Play("train.py 1b --length 256"),
            "short-amp": Play("train.py 1b --length 256 --recipe autocast"),
            "long-bf16": Play(TRAIN_1B),
        },
        (
            Row("images-kept", "ResNet-50, 128 images: less kept for backward", "50 %",
                saved("images-amp", "images", kept), percent),
            Row("images", "the same: less at the peak", "50 %",
                saved("images-amp", "images", peak), percent),
            Row("long-kept", "1.1B, 4 x 2,048 tokens: less kept for backward", "50 %",
                saved("long-amp", "long", kept), percent),
            Row("long", "the same: less at the peak", "50 %",
                saved("long-amp", "long", peak), percent),
            Row("short-kept", "1.1B, 256 tokens: less kept for backward", "50 %",
                saved("short-amp", "short", kept), percent),
            Row("short", "the same: less at the peak", "50 %",
                saved("short-amp", "short", peak), percent),
            Row("bf16", "1.1B, 4 x 2,048 tokens, all in bf16: less at the peak", "",
                saved("long-bf16", "long", peak), percent),
        ),
    ),
    "checkpointing": Section(
        {
            "none": Play(f"{TRAIN_1B} --flops"),
            "root": Play(f"{TRAIN_1B} --segments 5"),
            "all": Play(f"{TRAIN_1B} --segments 22 --flops"),
            "images": Play("images.py resnet50 --batch-size 128"),
            "images-less": Play("images.py resnet50 --batch-size 128 --checkpoint"),
        },
        (
            Row("kept", "1.1B, each layer: less kept by the forward pass", "80 %",
                saved("all", "none", kept), percent),
            Row("kept-times", "the same as a factor", "10x, 8-10x",
                fewer_times("all", "none", kept), times),
            Row("peak", "the same: less at the peak", "80 %", saved("all", "none", peak), percent),
            Row("peak-times", "the same as a factor", "10x, 8-10x",
                fewer_times("all", "none", peak), times),
            Row("root", "1.1B in 5 segments (the root of 22): less at the peak", "",
                saved("root", "none", peak), percent),
            Row("images-kept", "ResNet-50 as timm does it: less kept by the forward pass", "80 %",
                saved("images-less", "images", kept), percent),
            Row("images", "the same: less at the peak", "80 %",
                saved("images-less", "images", peak), percent),
            Row("flops", "1.1B, each layer: more floating-point operations", "33 %",
                lambda runs: runs["all"].said["flops"] / runs["none"].said["flops"] - 1, percent),
        ),
    ),
    "square-root": Section(
        {
            "none": Play("chain.py --layers 64"),
            **{
                f"{count}": Play(f"chain.py --layers 64 --segments {count}")
                for count in (4, 8, 16)
            },
        },
        (
            Row("none", "64 equal layers, all kept", f"{closed_forms.autograd_peak(64)} units",
                printed("none", "peak_units"), units),
            *(
                Row(f"{count}", f"in {count} segments",
                    f"{closed_forms.checkpointed_peak(64, count) + 2} units",
                    printed(f"{count}", "peak_units"), units)
                for count in (4, 8, 16)
            ),
        ),
    ),
    "accumulation": Section(
        {
            "one": Play("train.py gpt2 --length 1024 --batch-size 32"),
            "four": Play("train.py gpt2 --length 1024 --batch-size 8 --accumulate 4"),
            "single": Play("train.py gpt2 --length 1024 --batch-size 8"),
            "most": Play("train.py gpt2 --length 1024 --batch-size 1 --accumulate 32"),
        },
        (
            Row("one", "GPT-2, one batch of 32, peak", "", peak("one"), gb),
            Row("four", "4 batches of 8", "", peak("four"), gb),
            Row("most", "32 batches of 1", "", peak("most"), gb),
            Row("single", "one batch of 8, nothing accumulated", "", peak("single"), gb),
        ),
    ),
    "offload": Section(
        {
            "host": Play("offload.py", "--gpu a100-80gb --world-size 4"),
            "gpu": Play("offload.py --on-gpu", "--gpu a100-80gb --world-size 4"),
        },
        (
            Row("used", "each GPU, the whole device, at most", "",
                reported("host", "peak_used_bytes"), gb),
            Row("peak", "each GPU, allocated at the peak", "", peak("host"), gb),
            Row("tensors", "host, of each rank: fp32 weights, gradients and Adam's states", "",
                lambda runs: sum(runs["host"].said[f"{part}_bytes"]
                                 for part in ("weight", "gradient", "state")), gb),
            Row("needed", "host, of each rank, at least (pinned memory in powers of two)", "",
                lambda runs: float(runs["host"].document["host_needed_bytes"]), gb),
            Row("node", "host, of the four ranks", "",
                lambda runs: 4.0 * runs["host"].document["host_needed_bytes"], gb),
            Row("fits", "without offload: out-of-memory errors", "",
                reported("gpu", "num_ooms"), lambda figure: f"{figure:.0f}"),
        ),
    ),
}

# fmt: on
MECHANISMS = {
    "free": Section({"run": Play("free.py", "--gpu rtx-4090")}),
    "delete": Section({"run": Play("delete.py", "--gpu rtx-4090")}),
    "split": Section(
        {
            f"{what}{number}": Play(f"split.py {what}", options)
            for what in ("keeping", "shrinking")
            for number, options in enumerate(
                ("", "--alloc-conf max_split_size_mb:512", "--alloc-conf expandable_segments:True")
            )
        }
    ),
}

SECTIONS = SIZES | MEANS | MECHANISMS
