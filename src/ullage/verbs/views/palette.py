"""The label and the colour of each category, for all reports."""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

from ullage.clock.cost import Category as Kind
from ullage.clock.spread import WAITING
from ullage.log.category import Category


class Look(NamedTuple):
    """A label in the plural, and a colour as #rrggbb."""

    label: str
    color: str


# In the order of a ledger: memory that stays comes first, short-lived memory last. The colours can
# be told apart under the common kinds of colour blindness (Okabe and Ito's palette, and shades).
CATEGORY_LOOKS = MappingProxyType(
    {
        Category.PARAMETER: Look("parameters", "#0072b2"),
        Category.BUFFER: Look("buffers", "#56b4e9"),
        Category.GRADIENT: Look("gradients", "#d55e00"),
        Category.OPTIMIZER_STATE: Look("optimizer states", "#e69f00"),
        Category.ACTIVATION: Look("activations", "#009e73"),
        Category.INPUT: Look("inputs", "#66c2a5"),
        Category.TEMPORARY: Look("temporaries", "#cc79a7"),
        Category.WORKSPACE: Look("workspaces", "#b07aa1"),
        Category.COMMUNICATION: Look("communication", "#8c6bb1"),
        Category.KV_CACHE: Look("KV cache", "#f0e442"),
        Category.UNATTRIBUTED: Look("unattributed", "#999999"),
    }
)
CACHE_LOOK = Look("cache", "#6b7a90")
CONTEXT_LOOK = Look("context", "#8a6d4b")
NON_TORCH_LOOK = Look("other libraries", "#b39a7a")
OTHERS_LOOK = Look("other processes", "#7a5c99")
FREE_LOOK = Look("free", "#b8b8b8")
USED_LOOK = Look("used", "#0072b2")

# The parts of a server's memory, and of other models', by the names that estimates and logs have.
PART_LOOKS = MappingProxyType(
    {
        "weights": CATEGORY_LOOKS[Category.PARAMETER],
        "adapters and drafts": CATEGORY_LOOKS[Category.BUFFER],
        "activations": CATEGORY_LOOKS[Category.ACTIVATION],
        "step and graphs": CATEGORY_LOOKS[Category.ACTIVATION],
        "working memory": CATEGORY_LOOKS[Category.TEMPORARY],
        "padding of experts": CATEGORY_LOOKS[Category.BUFFER],
        "zero points": CATEGORY_LOOKS[Category.BUFFER],
        "states": CATEGORY_LOOKS[Category.BUFFER],
        "CUDA graphs": CATEGORY_LOOKS[Category.WORKSPACE],
        "KV cache": CATEGORY_LOOKS[Category.KV_CACHE],
        "cache": CATEGORY_LOOKS[Category.KV_CACHE],
        "cross-attention": CATEGORY_LOOKS[Category.KV_CACHE],
        "text": CATEGORY_LOOKS[Category.KV_CACHE],
        "kernels and buffers": CONTEXT_LOOK,
        "context": CONTEXT_LOOK,
        "context and libraries": CONTEXT_LOOK,
        "free": FREE_LOOK,
        "left free": FREE_LOOK,
        "left": FREE_LOOK,
        "beyond the share": FREE_LOOK,
    }
)

# Kinds of work, in the colours of memory where both are of the same thing.
KIND_LOOKS = MappingProxyType(
    {
        Kind.MATRIX_PRODUCTS.value: Look(Kind.MATRIX_PRODUCTS.value, "#0072b2"),
        Kind.ATTENTION.value: Look(Kind.ATTENTION.value, "#009e73"),
        Kind.CONVOLUTIONS.value: Look(Kind.CONVOLUTIONS.value, "#56b4e9"),
        Kind.MEMORY_BOUND.value: Look(Kind.MEMORY_BOUND.value, "#e69f00"),
        Kind.COMMUNICATION.value: Look(Kind.COMMUNICATION.value, "#8c6bb1"),
        Kind.COPIES.value: Look(Kind.COPIES.value, "#cc79a7"),
        Kind.UNKNOWN.value: Look(Kind.UNKNOWN.value, "#d55e00"),
        WAITING: Look(WAITING, "#9d9080"),
    }
)
REST_LOOK = Look("other kinds", "#999999")
IDLE_LOOK = Look("device idle", "#b8b8b8")


def part_look(name: str) -> Look:
    """The look of a part by its name; parts without a colour are grey."""
    return PART_LOOKS.get(name, Look(name, REST_LOOK.color))


def kind_look(name: str) -> Look:
    """The look of a kind of work by its name; kinds without a colour are grey."""
    return KIND_LOOKS.get(name, Look(name, REST_LOOK.color))
