"""Builds small indexes with faiss-cpu, and prints the bytes that each comes to when it is written.

python index_sizes.py CASES       # a JSON file: [[faiss's name, vectors, width], ...]
"""

import json
import sys
from pathlib import Path

import faiss
import numpy as np


def main() -> None:
    """Prints one line of JSON: the bytes of each case."""
    faiss.omp_set_num_threads(1)
    random = np.random.default_rng(0)
    sizes = []
    for name, vectors, width in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        rows = random.standard_normal((vectors, width), dtype=np.float32)
        index = faiss.index_factory(width, name)
        index.train(rows)
        index.add(rows)
        sizes.append(int(faiss.serialize_index(index).nbytes))
    print("figures:", json.dumps({"sizes": sizes, "faiss": faiss.__version__}), flush=True)


if __name__ == "__main__":
    main()
