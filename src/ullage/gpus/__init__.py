"""What GPUs exist: the catalogue, every figure with its source.

>>> find_gpu("H100").slug
'h100-80gb'
"""

from ullage.gpus.catalog import Gpu, Source, find_gpu, load_catalog, sources_of

__all__ = ["Gpu", "Source", "find_gpu", "load_catalog", "sources_of"]
