"""What the directory of a page holds before its blocks run, and which commands never run.

Every directory has `examples`, the programs of the tests and of the benchmarks, and `thin`, an
environment with torch, ullage and pytest. PREPARE adds to it, as typed in a shell.
"""

from __future__ import annotations

SHARED = ("examples", "tests/programs", "benchmarks/plans/programs")

_SNAPSHOT = "ullage run --python thin/bin/python --snapshot snapshot.pickle"
_SNAPSHOTS = f"""
{_SNAPSHOT} -- examples/gpt2/train.py
cp snapshot.pickle before.pickle
cp snapshot.pickle after.pickle
"""

PREPARE = {
    ("README.md", ""): f"{_SNAPSHOT} -- examples/gpt2/train.py",
    ("docs/guide/explain.md", ""): _SNAPSHOTS,
    ("docs/guide/python.md", ""): f"cp examples/gpt2/train.py train.py\n{_SNAPSHOTS}",
    ("docs/guide/pytest.md", ""): "cp tests/programs/documents/model.py .",
    ("docs/guide/pytest.md", "ci"): "cp tests/programs/documents/model.py .",
    ("docs/guide/fit-gpus.md", ""): "cp tests/programs/plans/wide.py .",
    ("docs/guide/check.md", ""): "cp tests/programs/documents/encoder.py train.py",
    ("docs/reference/check.md", "serving"): "cp examples/serving/* .",
    ("docs/reference/check.md", "small"): """
        cp examples/serving/* .
        printf '%s\n' '[scenario.serving]' 'gpu = "rtx-4070"' 'matrix = { users = [8] }' \
          'budget = { headroom = "5%" }' '[scenario.serving.requests]' 'file = "requests.jsonl"' \
          'function = "serve.py:complete"' 'concurrency = "{users}"' > ullage.toml
        """,
}

# Beginnings of commands -> why they are not run. None of them may print anything in a page.
NEVER_RUN = {
    "pip install": "needs the network",
    "ullage env": "needs the network; `thin` is there",
    "ullage exec": "needs a GPU; tests/cli/test_exec.py runs it",
    "ullage ui": "ends when it is interrupted; tests/browser drives it",
    "make": "runs all tests",
}
