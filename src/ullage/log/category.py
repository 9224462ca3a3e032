"""The kinds of owners of device memory; apart, so that it can be had without numpy."""

from __future__ import annotations

import enum


class Category(enum.Enum):
    """The owner of a block of device memory."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"
    INPUT = "input"
    TEMPORARY = "temporary"
    WORKSPACE = "workspace"
    COMMUNICATION = "communication"
    KV_CACHE = "kv_cache"
    UNATTRIBUTED = "unattributed"

    __hash__ = object.__hash__  # Enum's own hashes the name, in Python, each time
