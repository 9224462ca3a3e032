"""Which frame of a stack is told."""

from __future__ import annotations

import numpy as np
import pytest

from ullage.explain.owners.sites import UNKNOWN_SITE, find_sites, rank_frames
from ullage.log.snapshot import Frames, Stacks

TORCH = "env/lib/python3.11/site-packages/torch/nn/modules/linear.py"
LIBRARY = "env/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py"
EINOPS = "env/lib/python3.11/site-packages/einops/einops.py"
MODULE = "env/lib/python3.11/site-packages/torch/nn/modules/module.py"
PYTHON = "/usr/lib/python3.11/contextlib.py"
OURS = "src/ullage/players/inside/values/values.py"


def stacks_of(*frames: tuple[str, int, str]) -> Stacks:
    """One stack of frames, innermost first, after the empty one."""
    files, lines, functions = zip(*frames, strict=True) if frames else ((), (), ())
    return Stacks(
        Frames(tuple(files), np.array(lines, dtype=np.int64), tuple(functions)),
        np.array([0, 0, len(frames)]),
        np.arange(len(frames), dtype=np.uint32),
    )


def told(*frames: tuple[str, int, str]) -> tuple[str, str]:
    """The site and the caller of one stack."""
    sites = find_sites(stacks_of(*frames))
    return sites.names[sites.of_stack[1]], sites.names[sites.caller[1]]


def test_the_site_is_the_innermost_line_outside_torch_and_the_caller_the_users() -> None:
    site, caller = told(
        (TORCH, 134, "forward"), (LIBRARY, 164, "forward"), (PYTHON, 9, "inner"),
        ("my/train.py", 24, "main"), ("my/run.py", 3, "<module>"),
    )  # fmt: skip
    assert (site, caller) == ("llama/modeling_llama.py:164 in forward", "my/train.py:24 in main")


def test_without_a_library_both_are_the_users_line() -> None:
    site, caller = told((TORCH, 134, "forward"), ("train.py", 24, "main"))
    assert site == caller == "train.py:24 in main"


def test_torch_alone_is_told_where_nothing_else_is() -> None:
    assert told((TORCH, 134, "forward"), ("<frozen runpy>", 1, "x"))[0].startswith("modules/linear")


@pytest.mark.parametrize("frames", [(), ((OURS, 3, "_follow"),)])
def test_what_watches_a_run_is_no_site(frames: tuple[tuple[str, int, str], ...]) -> None:
    assert told(*frames) == (UNKNOWN_SITE, UNKNOWN_SITE)


def test_of_a_stack_of_cpp_the_operator_is_told() -> None:
    names = ["torch::unwind::unwind()", "c10::Allocator::allocate(unsigned long)",
             "at::_ops::bmm::redispatch(c10::DispatchKeySet)",
             "torch::autograd::generated::BmmBackward0::apply(x)"]  # fmt: skip
    assert told(*(("??", 0, name) for name in names))[0] == "bmm in backward (BmmBackward)"
    assert told(*(("", 0, name) for name in names[:3]))[0] == "bmm, called from C++"
    assert told(("x.cpp", 0, names[0]))[0] == "torch::unwind::unwind()"


def test_frames_are_ranked_by_how_much_they_say() -> None:
    files = ("train.py", LIBRARY, TORCH, PYTHON, "??", OURS)
    assert rank_frames(stacks_of(*((file, 1, "f") for file in files))).tolist() == [*range(6)]


def test_a_library_that_only_helps_is_not_the_site() -> None:
    """einops calls no module; the line that calls it is what needs the memory."""
    site, caller = told(
        ("site-packages/torch/functional.py", 373, "einsum"), (EINOPS, 939, "einsum"),
        ("my/model.py", 40, "forward"), (MODULE, 1790, "_call_impl"), ("my/train.py", 24, "main"),
    )  # fmt: skip
    assert site == caller == "my/model.py:40 in forward"


def test_a_library_of_models_is_the_site_where_it_calls_another() -> None:
    site, caller = told(
        (EINOPS, 939, "einsum"), (LIBRARY, 164, "forward"), (MODULE, 1790, "_call_impl"),
        (LIBRARY, 300, "forward"), (MODULE, 1790, "_call_impl"), ("my/train.py", 24, "main"),
    )  # fmt: skip
    assert (site, caller) == ("llama/modeling_llama.py:164 in forward", "my/train.py:24 in main")


def test_where_only_a_library_is_known_it_is_the_site() -> None:
    assert (
        told((EINOPS, 939, "einsum"), (PYTHON, 9, "inner"))[0] == "einops/einops.py:939 in einsum"
    )


INDUCTOR = "/tmp/torchinductor_ada/vq/cvqmx2wcvi5ewjbhpzgrk4dq2rxnbqpo3vq5oyfz2v5gkqvmq7xv.py"


def test_generated_code_without_a_file_is_no_site_where_a_line_of_the_users_is() -> None:
    made, caller = ("<made.py>", 7, "make"), ("my/train.py", 24, "main")
    assert told(made, caller) == ("my/train.py:24 in main",) * 2
    assert told(made) == ("<made.py>:7 in make", UNKNOWN_SITE)
    assert told(("<console>", 1, "<module>"), caller)[0] == "<console>:1 in <module>"


def test_a_generated_file_that_is_there_has_its_whole_path() -> None:
    site, caller = told(("/tmp/tmpab12cd34/made.py", 7, "make"), ("my/train.py", 24, "main"))
    assert site == caller == "/tmp/tmpab12cd34/made.py:7 in make"


def test_what_inductor_generates_is_not_the_users() -> None:
    site, caller = told((INDUCTOR, 61, "call"), (TORCH, 134, "forward"), ("my/train.py", 24, "f"))
    assert site == caller == "my/train.py:24 in f"


@pytest.mark.parametrize(
    ("file", "rank"),
    [
        ("/srv/ada/repo/src/einops/einops.py", 0),  # installed to be edited
        ("/tmp/ipykernel_4711/123456.py", 0),
        ("<ipython-input-3-0a1b2c>", 0),
        ("/opt/conda/envs/ml/lib/python3.10/site-packages/einops/einops.py", 1),
        ("/opt/conda/envs/ml/lib/python3.13t/threading.py", 3),
        ("/usr/lib64/python3.9/queue.py", 3),
        ("/usr/lib/python3/dist-packages/einops/einops.py", 1),
        ("/srv/ada/.venv/src/einops/einops/einops.py", 1),
        ("/srv/job/einops-0.8.0-py3-none-any.whl/einops/einops.py", 1),
        ("/srv/job/deps.egg/einops/einops.py", 1),
        ("/srv/job/app.zip/train.py", 0),
        ("/usr/lib/python311.zip/random.py", 3),
        ("C:/ada/miniconda3/envs/ml/Lib/site-packages/einops/einops.py", 1),
        ("C:/ada/miniconda3/envs/ml/lib/site-packages/torch/nn/functional.py", 2),
        ("C:/Python311/Lib/threading.py", 3),
        ("C:/ada/miniconda3/lib/queue.py", 3),
        ("C:/ada/project/lib/model.py", 0),
        ("C:/ada/AppData/Local/Temp/ipykernel_12/3.py", 0),
        ("C:/ada/train.py", 0),
        ("/usr/lib/libpython3.11.so.1.0", 4),
    ],
)
def test_whose_code_a_frame_is(file: str, rank: int) -> None:
    assert rank_frames(stacks_of((file, 1, "f"))).tolist() == [rank]
