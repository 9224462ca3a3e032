"""What real programs do that looks like a fault and is none: no rule may fire there.

Each script is the trace of a situation that was read in real code against the rule; see the builder
for its words. The first of many were findings before the rule was mended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.rows import each

from ullage.explain.rules.case import make_case
from ullage.explain.rules.registry import RULES, find_findings
from ullage.explain.snapshot import SnapshotReport

ReportOf = Callable[..., SnapshotReport]
FileOf = Callable[..., dict[str, Any]]
LEAST = 3


def repeat(pattern: str, count: int, before: str = "", size: int = 65536) -> str:
    """A pattern repeated, # standing for the number of the turn, after one segment."""
    turns = " ".join(pattern.replace("#", str(number)) for number in range(count))
    return f"[{size} {before} {turns}"


def numbered(pattern: str, numbers: range) -> str:
    """A pattern for each of some numbers, $ standing for the number."""
    return " ".join(pattern.replace("$", str(number)) for number in numbers)


STEP = "F x#+64@main:5>forward:2 f B g#+100=gradient x#- b O o g#- S"
WEIGHTS = "w+100@main:1=parameter"
LAYERS = range(8, 14)
MANY = numbered("w$+$@main:1=parameter", LAYERS)
ACCUMULATED = "F x#+64 f B x#- t#+1 t#- g#+100=gradient b F y#+64 f B y#- u#+1 u#- b O o g#- S"
ZEROED_FIRST = "F x#+64 f B x#- t#+1 t#- g#+100=gradient b O o S g#- n#+1 n#-"
FREED_AFTER = "F x#+64 f B x#- t#+1 t#- g#+100=gradient b O o g#- S"
ZERO_GRAD = [{"name": "Optimizer.zero_grad#SGD.zero_grad", "stage": "START", "time_us": 9000,
              "device": 0}]  # fmt: skip
SALIENCY = repeat(
    "F x#+64 f B x#- t#+1 t#- u#+1 u#- b S", 4, WEIGHTS + " F y+64 f B y- g+100=gradient b S"
)
TOO_BIG = "[3900 w+3850 !200:100"
FRAGMENTED = "[3900 a+100 w+3000 b+800 a- !150:100"
LEAKED = "[3900 w+100 " + numbered("F y$+500@main:6 f S", range(7)) + " !400:100"
OTHERS = "[2000 w+1900 !300:100"
SPIKE = "[1900 w+1800 !2300:2100"
# How many results are live after each step, where the collector frees most of them now and then.
NUM_LIVE = (1, 2, 3, 4, 2, 3, 4, 5, 6, 3, 4, 5, 6, 7, 8, 9, 4, 5, 6, 7, 8, 9, 4, 5, 6, 7, 8, 9, 10,
            5, 6, 7, 8, 9, 10, 11, 6, 7, 8, 9)  # fmt: skip
LIMITED_PIECES = "[1000 a+100 w+600 b+200 a- !150:2000"


def collect(num_live: Sequence[int]) -> str:
    """Steps with a block each, of which the oldest go until so many are left."""
    steps, oldest = [], 0
    for number, left in enumerate(num_live, 1):
        gone = range(oldest, number - left)
        oldest = number - left
        steps += [f"F x{number - 1}+9@main:5 f", *(f"x{old}-" for old in gone), "S"]
    return " ".join(["[65536", WEIGHTS, *steps])


COLLECTED = collect(NUM_LIVE)
# rule: what the program does: its trace, recorded by ullage.
QUIET: dict[str, dict[str, str]] = {
    "UL101": {
        "eight-bit Adam beside bf16 weights": repeat(
            STEP, 4, "w+300=parameter m+306=optimizer_state"
        ),
        "SGD with momentum": repeat(STEP, 4, "w+300=parameter m+300=optimizer_state"),
        "Adafactor, factored states": repeat(STEP, 4, "w+300=parameter m+5=optimizer_state"),
        "Adam of LoRA adapters alone": repeat(
            STEP, 4, "w+900=parameter a+10=parameter m+20=optimizer_state"
        ),
    },
    "UL102": {
        "fused AdamW": repeat(STEP, 4, WEIGHTS),
        "foreach=False, a parameter at a time": repeat(
            "F x#+64 f B g#+100=gradient x#- b O s#+2 s#- t#+2 t#- u#+2 u#- o g#- S", 4, WEIGHTS
        ),
        "the peak is in backward": repeat(
            "F x#+400 f B g#+100=gradient x#- b O t#+90 t#- o g#- S", 4, WEIGHTS
        ),
        "Adam makes its states in the first step": repeat(
            STEP, 4, WEIGHTS + " F y+64 f B y- h+100=gradient b O m+200=optimizer_state o h- S"
        ),
    },
    "UL103": {
        "a saliency map has no optimizer": SALIENCY,
        "gradients of two micro-batches are added up": repeat(ACCUMULATED, 4, WEIGHTS),
        "zero_grad at the head of the loop": repeat(ZEROED_FIRST, 4, WEIGHTS),
        "a single step": repeat(STEP, 1, WEIGHTS),
    },
    "UL104": {
        "gradients of two micro-batches are added up": repeat(ACCUMULATED, 4, WEIGHTS),
        "zero_grad at the head of the loop": repeat(ZEROED_FIRST, 4, WEIGHTS),
        "zero_grad right after the step": repeat(FREED_AFTER, 4, WEIGHTS),
        "gradients are views of a bucket of DDP's": repeat(
            "F x#+64 f B x#- t#+1 t#- b O o S", 4, WEIGHTS + " g+100=gradient"
        ),
        "a list holds the gradients until it has the next": "[65536 " + WEIGHTS + "".join(
            f" F x{n}+64 f B x{n}- t{n}+1 t{n}- g{n}+100=gradient{f' g{n - 1}-' * (n > 0)} b O o S"
            for n in range(4)
        ),
    },
    "UL105": {
        "a teacher is a module": repeat(STEP, 3, MANY + numbered(" t$+$@main:2=parameter", LAYERS)),
        "a checkpoint is dropped once it is loaded": repeat(
            STEP, 3, numbered("c$+$@load:2 w$+$=parameter", LAYERS) + numbered(" c$-", LAYERS)
        ),
        "an average of the weights in half precision": repeat(
            STEP, 3, numbered("w$+$=parameter", range(8, 14, 2)) + " a+4 b+5 c+6"
        ),
        "one tensor has the size of a weight": repeat(STEP, 3, MANY + " i+8@main:9"),
    },
    "UL107": {
        "the weights come as they are used": repeat(STEP, 3, MANY),
        "they are converted after a pass": repeat(
            STEP, 3, MANY + " N a+9 f a- " + numbered("h$+4=parameter w$-", LAYERS)
        ),
        "a checkpoint is dropped once it is loaded": repeat(
            STEP, 3, numbered("c$+$@load:2 w$+$=parameter", LAYERS) + numbered(" c$-", LAYERS)
        ),
    },
    "UL108": {
        "two models of other sizes": repeat(
            STEP, 3, numbered("w$+$=parameter/Net.$.w", LAYERS)
            + numbered(" v$+9=parameter/Net#2.$.w", LAYERS),
        ),
        "the first is gone": repeat(
            STEP, 3, numbered("w$+$=parameter/Net.$.w w$-", LAYERS)
            + numbered(" v$+$=parameter/Net#2.$.w", LAYERS),
        ),
        "a teacher of another class": repeat(
            STEP, 3, numbered("w$+$=parameter/Net.$.w", LAYERS)
            + numbered(" v$+$=parameter/Big#2.$.w", LAYERS),
        ),
        "the first is still trained": repeat(
            "F x#+64 f B g#+100=gradient/Net.8.w x#- b O o g#- S", 3,
            numbered("w$+$=parameter/Net.$.w", LAYERS)
            + numbered(" v$+$=parameter/Net#2.$.w", LAYERS),
        ),
    },
    "UL106": {
        "activations of fp32 with half the weights' sizes": repeat(
            "F " + numbered("c$_#+$", LAYERS) + " f B " + numbered("c$_#-", LAYERS) + " b O o S",
            3, numbered("w$+$=parameter", range(16, 28, 2)),
        ),
        "weights in bf16": repeat(
            "F " + numbered("x$_#+50", LAYERS) + " f B " + numbered("x$_#-", LAYERS) + " b O o S",
            3, MANY,
        ),
        "frozen weights are cast for a moment": repeat(
            "F " + numbered("c$_#+$ c$_#-", LAYERS) + " x#+9 y#+9 z#+9 v#+9 f B x#- y#- z#- v#- b "
            "O o S", 3, numbered("w$+$=parameter", range(16, 28, 2)),
        ),
        "two activations are half as large as a weight": repeat(
            "F x#+8 y#+9 z#+50 u#+50 f B x#- y#- z#- u#- b O o S", 3,
            numbered("w$+$=parameter", range(16, 28, 2)),
        ),
    },
    "UL111": {
        "loss.item() in each step": repeat(
            "F x#+9@main:5>f:1 y#+9@main:5>f:2 z#+9@main:5>f:3 f B b x#- y#- z#- S", 6
        ),
        "predictions are gathered under no_grad": repeat(
            "N x#+9@main:5>f:1 y#+9@main:5>f:2 z#+9@main:5>f:3 f S", 6
        ),
        "graphs of two micro-batches go with their step": repeat(
            "F x#+9@f:1 y#+9@f:2 z#+9@f:3 f F u#+9@f:1 v#+9@f:2 s#+9@f:3 f B x#- y#- z#- u#- v#- "
            "s#- b O o S", 6
        ),
    },
    "UL112": {
        "experts get their Adam states as they are first used": repeat(
            "F x#+9@f:1 f B x#- b O m#+18@init_group:3=optimizer_state o S", 6, WEIGHTS
        ),
        "experts get their gradients as they are first used": repeat(
            "F x#+9@f:1 f B x#- g#+9@backward:3=gradient b O o S", 6, WEIGHTS
        ),
        "what an epoch gathered is let go with it": repeat(
            "N x#a+9@f:1 f S N x#b+9@f:1 f S N x#c+9@f:1 f x#a- x#b- x#c- S", 3
        ),
        "a cache fills and stays full": repeat("N c#+50@f:1 f S", 3) + repeat(
            " N x#+9@f:2 x#- f S", 12).removeprefix("[65536"),
    },
    "UL113": {
        "a contrastive loss needs both views": repeat(
            "F a#+50@forward:5 f F b#+50@forward:5 f l#+1k B a#- b#- b l#- O o S", 4
        ),
        "a recurrent cell is called for each time step": repeat(
            "F a#+50@forward:5 f l#+1k F b#+50@forward:5 f m#+1k F c#+50@forward:5 f n#+1k "
            "F d#+50@forward:5 f o#+1k F e#+50@forward:5 f B a#- b#- c#- d#- e#- b l#- m#- n#- o#- "
            "O o S", 4
        ),
        "a discriminator sees real, then made-up images": repeat(
            "F a#+50@forward:5 f l#+1k B a#- b l#- F b#+50@forward:5 f B b#- b O o S", 4
        ),
        "gradients of two micro-batches are added up": repeat(ACCUMULATED, 4, WEIGHTS),
    },
    "UL114": {
        "m(x).mean().backward() of a linear layer": repeat(
            "F y#+50@f:1 z#+4@f:2 f l#+1k y#- z#- B g#+9=gradient b g#- S", 3
        ),
        "a contrastive loss needs both views": repeat(
            "F a#+50@f:1 c#+50@f:2 f F b#+50@f:1 d#+50@f:2 f B a#- c#- b#- d#- b O o S", 3
        ),
        "evaluation under no_grad": repeat(
            "F a#+20@f:1 f B a#- b O o S N b#+50@f:1 c#+50@f:2 b#- d#+50@f:3 c#- f d#-", 3
        ),
        "frozen features are read operation by operation": repeat(
            "F a#+50@f:1 c#+50@f:2 a#- d#+50@f:3 c#- e#+50@f:4 d#- f e#- F x#+9@g:1 f B x#- b O o "
            "S", 3
        ),
        "each layer is a module of its own, and its input goes to the host": repeat(
            "F1 a#+50@f:1 f c#+50@g:1 k#+1k l#+1k a#- F2 d#+50@f:1 m#+1k c#- f n#+1k B d#- "
            "g#+9=gradient b O o g#- k#- l#- m#- n#- S", 3,
        ),
        "memory ran out amid the pass": "[400 F a+20@f:1 f B a- b O o S F b+200@f:1 c+150@f:2 "
        "!100:10 b- c-",
    },
    "UL115": {
        "results of all steps go at the end": "[65536 " + numbered("F x$+9@f:1 f S", range(16))
        + numbered(" x$-", range(16)) + " N z+1 z- f S",
        "each step's blocks go with it": repeat("F x#+9@f:1 f B x#- b O o S", 16),
        "every fourth step evaluates": repeat(
            "F a#+9@f:1 f a#- S F b#+9@f:1 f b#- S F c#+9@f:1 f c#- S F d#+9@f:1 e#+90@g:1 f d#- "
            "e#- S", 4
        ),
    },
    "UL116": {
        "it is used in every backward": repeat(
            "F x#+40@f:1 f B x#~ r~ b x#- S", 4, "r+90@main:2 w+9=parameter"
        ),
        "it goes before the peak": repeat(
            "F x#+40@f:1 f B x#~ b x#- S", 4, "r+90@main:2 r~ r- w+9=parameter"
        ),
        "a batch that was too large is given up": "[900 w+9=parameter x+700@f:1 x~ a+1 b+1 c+1 "
        "a- b- c- !400:100 x- "
        + repeat("F x#+40@f:1 f B x#~ b x#- S", 4).removeprefix("[65536 "),
        "it is little": repeat(
            "F x#+400@f:1 f B x#~ b x#- S", 4, "r+9@main:2 r~ w+9=parameter a+1 b+1 a- b-"
        ),
    },
    "UL117": {
        "the value of a cell has a name as well": repeat(
            STEP, 3, WEIGHTS + " x+90@main:3 x?o x?v"
        ),
        "a variable gets the output of an earlier cell": repeat(
            STEP, 3, WEIGHTS + " x+90@main:3 x?o y+1 x?v"
        ),
        "an exception ends the program after its peak": repeat(
            STEP, 3, WEIGHTS + " x+90@main:3 x?v"
        ) + " x?e",
        "an OOM that nobody catches ends the program": "[900 w+9 x+800 x?v !400:90 y+1 x?e",
        "small values are displayed": repeat(STEP, 3, WEIGHTS + " x+3@main:3 x?o"),
    },
    "UL121": {
        "a classifier of ten classes": repeat(
            "F a#+400@f:1 b#+1@f:2>cross_entropy:3 f B a#- b#- b S", 3
        ),
        "the loss is made in chunks": repeat(
            "F a#+400@f:1 b#+9@f:2>cross_entropy:3 b#- c#+9@f:2>cross_entropy:3 c#- f B a#- b S", 3
        ),
        "activations of layers have half the size of the logits": repeat(
            f"F {numbered('a#_$+50@f:1', range(16))} b#+100@f:9 f c#+100@f:2>cross_entropy:3 B "
            f"{numbered('a#_$-', range(16))} b#- c#- b S", 3
        ),
        "a regression has no classes": repeat(
            "F a#+50@f:1 b#+100@f:2>mse_loss:3 c#+100@f:3 f B a#- b#- c#- b S", 3
        ),
    },
    "UL122": {
        "a stage of a U-Net halves its channels": repeat(
            "F a#+20@down:2 b#+20@down:3 c#+10@down:4 f B a#- b#- c#- b S", 3, "x+20@main:1"
        ),
        "a fused norm gives back what it takes": repeat(
            "F h#+10@main:1 a#+10@norm:2 b#+10@norm:3 c#+10@norm:4 f B a#- b#- c#- h#- b S", 3
        ),
        "an MLP widens four times": repeat(
            "F h#+10@main:1 a#+40@mlp:2 b#+40@mlp:3 c#+10@mlp:4 f B a#- b#- c#- h#- b S", 3
        ),
    },
    "UL123": {
        "fused attention saves what is as large as the rest": repeat(
            "F a#+9@f:1 b#+9@f:2 c#+9@f:3>attention:4 d#+9@f:3>attention:5 f B a#- b#- c#- d#- b "
            "S", 3
        ),
        "a few latents attend": repeat(
            "F a#+90@f:1 b#+90@f:2 c#+20@f:3>cross_attention:4 f B a#- b#- c#- b S", 3
        ),
        "what is large is the mask": repeat(
            "F a#+9@f:1 b#+9@f:2 c#+90@f:3>attention:4>make_causal_mask:2 f B a#- b#- c#- b S", 3
        ),
    },
    "UL124": {
        "a masked autoencoder drops patches": repeat(
            "F a#+50@f:1>random_masking:2 b#+9@f:2 f B a#- b#- b S", 3
        ),
        "a segmentation model predicts masks": repeat(
            "F a#+50@f:1>predict_masks:2 b#+9@f:2 f B a#- b#- b S", 3
        ),
        "a dropout's mask is applied": repeat(
            "F a#+50@f:1>apply_mask:2 b#+9@f:2 f B a#- b#- b S", 3
        ),
        "a causal mask is small": repeat(
            "F a#+1@f:1>make_causal_mask:2 b#+90@f:2 f B a#- b#- b S", 3
        ),
    },
    "UL125": {
        "layers are checkpointed already": repeat(
            "F " + numbered("a$_#+9@main:1>checkpoint:2>f:3", range(24)) + " f B "
            + numbered("a$_#-", range(24)) + " b S", 3
        ),
        "four wide layers": repeat(
            "F " + numbered("a$_#+90@f:$", range(4)) + " f B " + numbered("a$_#-", range(4))
            + " b S", 3
        ),
        "weights are the most of it": repeat(
            "F " + numbered("a$_#+9@f:1", range(24)) + " f B " + numbered("a$_#-", range(24))
            + " b S", 3, "w+900=parameter"
        ),
        "inference keeps nothing": repeat(
            "N " + numbered("a$_#+9@f:1 a$_#-", range(24)) + " f S", 3
        ),
    },
    "UL126": {
        "many layers, which are another finding": repeat(
            "F " + numbered("a$_#+9@f:1", range(24)) + " f B " + numbered("a$_#-", range(24))
            + " b S", 3
        ),
        "weights are the most of it": repeat(
            "F " + numbered("a$_#+90@f:$", range(4)) + " f B " + numbered("a$_#-", range(4))
            + " b S", 3, "w+900=parameter"
        ),
        "inference keeps nothing": repeat(
            "N " + numbered("a$_#+90@f:$ a$_#-", range(4)) + " f S", 3
        ),
        "parts are checkpointed already": repeat(
            "F " + numbered("a$_#+90@main:1>checkpoint:2>f:$", range(4)) + " f B "
            + numbered("a$_#-", range(4)) + " b S", 3
        ),
    },
    "UL131": {
        "a cache of fixed length": repeat("N x#+4@cat:9 f x#- S", 8, "c+90@cat:9"),
        "each batch is longer": repeat("x#+1#@load:3 F a#+9@f:1 f B a#- b S x#-", 8),
        "garbage of one size goes several at a time, in ever larger groups": COLLECTED,
        "a mask is concatenated anew, as large each time": repeat(
            "N m#+40@cat:3 f m#- S", 8, WEIGHTS
        ),
    },
    "UL132": {
        "each layer has its own cache of keys": repeat(
            STEP, 3, numbered("k_cache$+40@main:2=buffer", range(5))
        ),
        "quantised weights are buffers": repeat(
            STEP, 3, numbered("qweight$+40@main:2=buffer", range(5))
        ),
        "two towers have a mask each": repeat(
            STEP, 3, "mask1+40@main:2=buffer mask2+40@main:2=buffer"
        ),
        "running statistics of layers": repeat(
            STEP, 3, numbered("running_mean$+20=buffer", range(5))
        ),
    },
    "UL133": {
        "each step has its batch": repeat("d#+300@main:2 " + STEP + " d#-", 3, WEIGHTS),
        "a cache of keys is there from the beginning": repeat(
            STEP, 3, WEIGHTS + " c+300=kv_cache"
        ),
        "a small table": repeat(STEP, 3, WEIGHTS + " t+20@main:2"),
        "a table of the model": repeat(STEP, 3, WEIGHTS + " t+300@main:2=buffer"),
    },
    "UL136": {
        "weights are larger than the cache": repeat(
            "N a#+9@f:1 a#- f S", 3, "w+900@main:1=parameter c+90@main:2=kv_cache"
        ),
        "a prompt's activations are larger": repeat(
            "N a#+500@f:1 b#+1 a#- b#- f S", 3, "w+9=parameter c+90@main:2=kv_cache"
        ),
        "training keeps no cache": repeat(STEP, 3, WEIGHTS),
    },
    "UL141": {
        "all that is reserved was used at once": repeat(STEP, 4, WEIGHTS, size=270),
        "less than 192 MiB lie idle": "[190 a+190 a- [200 b+200",
        "a twentieth lies idle": "[9000 a+9000 [200 b+200 b- [210 c+210 c-",
    },
    "UL142": {
        "every later step uses it": repeat(STEP, 8, WEIGHTS, size=280),
        "there are three steps": repeat(STEP, 3, WEIGHTS, size=2048),
        "a later evaluation needs it": "[2048 " + repeat(STEP, 3, WEIGHTS).partition(" ")[2]
        + repeat(" N e#+1800 e#- f F y#+9 f B y#- b O o S", 6).removeprefix("[65536 "),
    },
    "UL143": {
        "no graph was captured": "[1000 w+900",
        "a graph's pool is full": "[1000 w+900 {500 a+100 b+390",
        "a small graph beside a large model": "[9000 w+8900 {300 a+100",
    },
    "UL144": {
        "all steps are alike": repeat(STEP, 4, WEIGHTS),
        "two steps": repeat(STEP, 1, WEIGHTS + " F x+300@f:1 f B b x- S"),
        "a batch that was too large is given up": "[900 w+9=parameter F x+700@f:1 !400:100 f x- "
        + repeat("F x#+40@f:1 f B x#- b S", 4).removeprefix("[65536 "),
        "later batches are longer": repeat("F x#+9# f B x#- b O o S", 8, WEIGHTS),
        "Adam makes its states in the first step": repeat(
            STEP, 4, WEIGHTS + " F y+64 f B y- h+100=gradient b O m+200=optimizer_state o h- S"
        ),
    },
    "UL146": {
        "one workspace of cuBLAS": repeat(STEP, 2, WEIGHTS + " k+32=workspace"),
        "a tenth of a large model": repeat(STEP, 2, "w+2000=parameter k+160=workspace"),
        "100 MiB beside a small model": repeat(STEP, 2, WEIGHTS + " k+100=workspace"),
    },
    "UL147": {
        "the layers' own tensors are as large": repeat(
            "N a#+90@f:1 t#+400@f:2 b#+90@f:3 t#- a#- b#- f S", 3, WEIGHTS
        ),
        "gradients of activations come and go": repeat(
            "F x#+20 f B t#+400@f:2 u#+1 t#- u#- x#- b O o S", 3, WEIGHTS
        ),
        "a convolution's workspace": repeat(
            "N a#+9@f:1 k#+400=workspace b#+9@f:3 k#- a#- b#- f S", 3, WEIGHTS
        ),
        "a small spike": repeat("N a#+9@f:1 t#+50@f:2 b#+1@f:3 t#- a#- b#- f S", 3, "w+900"),
    },
    "UL151": {"fragmented": FRAGMENTED, "leaked": LEAKED, "another process": OTHERS,
              "a spike": SPIKE},
    "UL152": {"too big": TOO_BIG, "leaked": LEAKED, "another process": OTHERS, "a spike": SPIKE},
    "UL153": {"too big": TOO_BIG, "fragmented": FRAGMENTED, "another process": OTHERS,
              "a spike": SPIKE},
    "UL154": {"too big": TOO_BIG, "fragmented": FRAGMENTED, "leaked": LEAKED, "a spike": SPIKE},
    "UL155": {"too big": TOO_BIG, "fragmented": FRAGMENTED, "leaked": LEAKED,
              "another process": OTHERS, "a gradient": "[1900 w+1790 B t+10 !2300:2100 b"},
    "UL156": {"too big": TOO_BIG, "fragmented": FRAGMENTED, "leaked": LEAKED,
              "pieces within the limit": LIMITED_PIECES},
    "UL161": {
        "batches are pinned": repeat("x#+4@main:5 x#<p " + STEP.replace("x#", "y#") + " x#-", 5),
        "the weights are copied once": "[65536 x+400 x< " + repeat(STEP, 5).removeprefix("[65536"),
        "a batch of tokens": repeat("x#+64k x#< " + STEP.replace("x#", "y#") + " x#-", 5),
    },
    "UL162": {
        "the copy goes on beside": repeat("x#+4 x#<p " + STEP.replace("x#", "y#") + " x#-", 5),
        "one copy is waited for": "[65536 x+4@main:5 x<pw "
        + repeat(STEP, 5).removeprefix("[65536"),
        "a batch of tokens": repeat("x#+64k x#<pw " + STEP.replace("x#", "y#") + " x#-", 5),
    },
    "UL163": {
        "two buffers are filled again": repeat(STEP.replace("b O", "b ^600 O"), 8),
        "it grows by little": repeat(STEP.replace("b O", "b ^1# O"), 8),
        "loaders start in the first steps": repeat(STEP.replace("b O", "b ^#00 O"), 4)
        + repeat(STEP.replace("b O", "b ^300 O").replace("#", "9#"), 8).removeprefix("[65536"),
    },
    "UL164": {
        "the copy is on a stream of its own": repeat(
            "x#+40 x#<ps " + STEP.replace("x#", "y#") + " x#-", 5
        ),
        "the weights are copied once": "[65536 x+400 x<p " + repeat(STEP, 5).removeprefix("[65536"),
        "a small batch": repeat("x#+15 x#<p " + STEP.replace("x#", "y#") + " x#-", 5),
        "it is not pinned, which is another finding": repeat(
            "x#+40 x#< " + STEP.replace("x#", "y#") + " x#-", 5
        ),
    },
}  # fmt: skip
# Those that take more than a script: written as tests below, under these names.
OTHER = {"UL134": 3, "UL145": 3, "UL148": 3, "UL149": 3, "UL165": 6}
CASES = [(code, name) for code, cases in QUIET.items() for name in cases]


def test_what_the_collector_frees_is_named_as_that(report_of: ReportOf) -> None:
    (finding,) = find_findings(report_of(COLLECTED, has_record=True))
    assert finding.rule.code == "UL115"
    assert "hold 18.0 MiB to 99.0 MiB, rising and falling" in finding.evidence[0]


@each(("code", "name"), CASES)
def test_a_rule_keeps_still(report_of: ReportOf, code: str, name: str) -> None:
    notes = {"external_annotations": ZERO_GRAD} if code == "UL104" else {}
    report = report_of(QUIET[code][name], has_record=True, **notes)
    assert not report.record_remark
    assert code not in {one.rule.code for one in find_findings(report)}


@pytest.mark.parametrize(
    ("what", "count", "num_plans"),
    [
        ("cuFFT plans", 64, 64),
        ("cuFFT plans", 9000, 32),  # the program has set max_size
        ("NCCL's buffers of collectives", 1, 4096),
    ],
)
def test_a_few_plans_of_ffts_and_other_libraries_are_no_finding(
    report_of: ReportOf, file_of: FileOf, what: str, count: int, num_plans: int
) -> None:
    file = file_of("[20 a+1", has_record=True)
    low, high = num_plans * 437_500, num_plans * 720_896
    device = file["ullage"]["devices"][0]
    device["outside"] = [["outside", what, "", count, low, high, high]]
    assert "UL149" not in {one.rule.code for one in find_findings(report_of("", **file))}


def test_gradients_of_a_recording_without_phases_are_no_spike(
    report_of: ReportOf, file_of: FileOf
) -> None:
    """As in a published recording of attention by hand, whose stacks are of C++ alone."""
    node = "torch::autograd::generated::DivBackward0::apply(torch::autograd::variable_list&&)"
    for name, codes in ((node, set()), ("at::native::div(at::Tensor const&)", {"UL147"})):
        file = file_of("[2000 a+9@f:1 t+400@g:2 b+1@f:3 t- a- b- c+1")
        for event in file["device_traces"][0]:
            for frame in event["frames"]:
                if frame["name"] == "g":
                    frame |= {"filename": "Functions.cpp", "name": name}
        found = {one.rule.code for one in find_findings(report_of("", **file))}
        assert found & {"UL147"} == codes


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([(0.1, 0.05, 0.0, 0.0)] * 8, id="the GPU had work during all waits"),
        pytest.param([(0.1, 0.01, 0.01, 0.01)] * 8, id="a tenth is lost"),
        pytest.param([(9.0, 8.0, 8.0, 8.0), *[(0.1, 0.0, 0.0, 0.0)] * 7], id="workers start once"),
        pytest.param([(0.002, 0.0009, 0.0009, 0.0009)] * 8, id="steps of two milliseconds"),
        pytest.param([(0.1, 0.09, 0.09, 0.09)] * 2, id="two steps"),
        pytest.param([], id="the first batch alone"),
    ],
)
def test_waits_that_cost_little_are_no_finding(
    report_of: ReportOf, file_of: FileOf, steps: list[tuple[float, ...]]
) -> None:
    file = file_of(repeat(STEP, 5), has_record=True)
    rows = [[0, 1, 9.0, 9.0, 9.0, 9.0], *([i, 1, *row] for i, row in enumerate(steps, 1))]
    file["ullage"]["batch_waits"] = {"num_workers": 2, "waits": rows}
    assert "UL165" not in {one.rule.code for one in find_findings(report_of("", **file))}


def test_every_rule_has_three_programs_in_which_it_keeps_still() -> None:
    counts = {code: len(cases) for code, cases in QUIET.items()} | OTHER
    assert set(counts) == set(RULES)
    assert all(count >= LEAST for count in counts.values())
    assert all(RULES[code] for code in QUIET)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param("[800 a+700@main:3", "[1000 b+900", id="stages of a pipeline"),
        pytest.param("[200 a+150@main:3", "[1000 b+900", id="a small stage"),
        pytest.param("[1000 a+900@main:3", "", id="one device"),
    ],
)
def test_devices_that_do_work_are_no_finding(
    report_of: ReportOf, file_of: FileOf, first: str, second: str
) -> None:
    files = [file_of(script) for script in (first, second) if script]
    for number, file in enumerate(files):
        for segment in file["segments"]:
            segment["device"] = number
    report = report_of(
        "", segments=[one for file in files for one in file["segments"]],
        device_traces=[file["device_traces"][0] for file in files],
    )  # fmt: skip
    assert "UL134" not in {one.rule.code for one in find_findings(report)}


@pytest.mark.parametrize(
    ("script", "part"),
    [
        pytest.param("[2048 a+1000 b+500", 1.0, id="sizes are multiples of 512"),
        pytest.param("[2048 a+1000 b+500", 0.95, id="a twentieth is lost"),
        pytest.param("[512 a+300 b+100", 0.9, id="40 MiB are lost"),
    ],
)
def test_rounding_of_little_is_no_finding(report_of: ReportOf, script: str, part: float) -> None:
    report = report_of(script)
    (device,) = report.devices
    blocks = device.replay.blocks
    asked = replace(blocks, requested_bytes=(blocks.size_bytes * part).astype("int64"))
    rounded = replace(device, replay=replace(device.replay, blocks=asked))
    assert not list(RULES["UL145"].find(make_case(report, rounded)))


@pytest.mark.parametrize(
    ("script", "num_streams"),
    [
        pytest.param(numbered("[200 a$+200 a$-", range(4)) + " k+2", 1, id="one stream"),
        pytest.param("[2000 a+1900 [100 b+50 b-", 3, id="a side stream for copies"),
        pytest.param("[900 a+900 [900 b+900", 3, id="two streams that work at once"),
    ],
)
def test_streams_whose_memory_is_used_are_no_finding(
    report_of: ReportOf, file_of: FileOf, script: str, num_streams: int
) -> None:
    file = file_of(script)
    for entries in (file["device_traces"][0], file["segments"]):
        for entry in entries:
            place = entry.get("addr", entry.get("address"))
            entry["stream"] = (place >> 36) % num_streams
    assert "UL148" not in {one.rule.code for one in find_findings(report_of("", **file))}
