"""The catalogue of GPUs. Every figure has its source.

>>> find_gpu("H100").slug
'h100-80gb'
"""

from ullage.facts.gpus.catalog import (
    EstimateOnlyGpu,
    Gpu,
    Segment,
    Source,
    TensorRates,
    find_entry,
    find_gpu,
    find_group,
    load_catalog,
    load_estimate_only,
    sources_of,
)

__all__ = [
    "EstimateOnlyGpu",
    "Gpu",
    "Segment",
    "Source",
    "TensorRates",
    "find_entry",
    "find_gpu",
    "find_group",
    "load_catalog",
    "load_estimate_only",
    "sources_of",
]
