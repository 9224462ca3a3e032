"""Each way in which a program touches torch's compiler first, each in a fork of its own.

    compiler_imports.py [--all]

Prints, as its last line, JSON: the way -> "" or how it failed.
"""

import argparse
import importlib
import importlib.util
import json
import os
import pickle
import pkgutil
import sys
import traceback
import unittest.mock

import torch


def import_of_a_submodule() -> None:
    """gpt-fast's first lines."""
    import torch._dynamo.config
    import torch._inductor.config

    torch._inductor.config.coordinate_descent_tuning = True
    torch._dynamo.config.suppress_errors = True
    assert importlib.import_module("torch._dynamo").config is torch._dynamo.config


def import_from_the_package() -> None:
    """A submodule as a name of its package."""
    from torch._dynamo import config
    from torch._dynamo.utils import counters

    assert config is sys.modules["torch._dynamo.config"]
    assert counters is sys.modules["torch._dynamo"].utils.counters


def import_of_the_other_compiler() -> None:
    """It imports the first one by itself."""
    import torch._inductor.config

    assert torch._inductor.config.get_config_copy()


def import_by_name() -> None:
    """A module of a module, first."""
    registry = importlib.import_module("torch._dynamo.backends.registry")
    assert "eager" in registry.list_backends(exclude_tags=())


def reset() -> None:
    """A function, before anything was compiled."""
    torch._dynamo.reset()
    assert torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(2)).tolist() == [1, 1]


def search_for_a_submodule() -> None:
    """What says where a module is."""
    spec = importlib.util.find_spec("torch._dynamo.utils")
    assert spec is not None
    assert str(spec.origin).endswith("utils.py")
    assert spec.loader.get_source("torch._dynamo.utils")


def list_of_submodules() -> None:
    """What pkgutil finds in the package."""
    names = {module.name for module in pkgutil.iter_modules(torch._dynamo.__path__)}
    assert {"config", "utils", "eval_frame"} <= names
    assert "explain" in dir(torch._dynamo)


def patch_of_a_setting() -> None:
    """As tests do it."""
    with unittest.mock.patch("torch._dynamo.config.suppress_errors", new=True):
        assert torch._dynamo.config.suppress_errors


def reload_of_a_submodule() -> None:
    """A module that takes no attributes, and one that does."""
    import torch._dynamo.external_utils

    assert importlib.reload(torch._dynamo.external_utils).is_compiling is not None


def pickles() -> None:
    """A function of a submodule, by its name."""
    load = b"ctorch._dynamo.external_utils\nis_compiling\n."
    function = pickle.loads(load)
    assert pickle.loads(pickle.dumps(function)) is function


def decorators() -> None:
    """A function of the program that is not to be compiled is not, ever."""

    @torch._dynamo.disable
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x + int(torch.compiler.is_compiling())

    @torch._dynamo.disable(recursive=False)
    def plain_too(x: torch.Tensor) -> torch.Tensor:
        return x

    compiled = torch.compile(lambda x: plain_too(plain(x)), backend="eager")
    assert compiled(torch.zeros(1)).item() == 0


def public_decorators() -> None:
    """As torchvision and transformers have them at their import; then something is compiled."""
    traced = []

    @torch.compiler.disable
    def whole(x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    @torch.compiler.disable(recursive=False)
    def alone(x: torch.Tensor) -> torch.Tensor:
        traced.append(torch.compiler.is_compiling())
        return x

    def inner(x: torch.Tensor) -> torch.Tensor:
        traced.append(torch.compiler.is_compiling())
        return x + 1

    assert whole(alone(torch.zeros(1))).item() == 1
    assert "torch._dynamo.eval_frame" not in sys.modules
    compiled = torch.compile(lambda x: alone(whole(x * 2)) * 3, backend="eager")
    assert compiled(torch.ones(1)).item() == 9
    assert traced == [False] * 4


def eager_optimizer() -> None:
    """The one way that leaves it as it is."""
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([parameter])
    parameter.sum().backward()
    optimizer.step()
    assert "torch._dynamo.eval_frame" not in sys.modules


QUICK = (import_of_a_submodule, decorators, public_decorators, eager_optimizer)
ALL = (
    *QUICK, import_from_the_package, import_of_the_other_compiler, import_by_name, reset,
    search_for_a_submodule, list_of_submodules, patch_of_a_setting, reload_of_a_submodule, pickles,
)  # fmt: skip


def outcome_in_fork(way: object) -> str:
    """How a way failed in a process that has not touched the compiler; "": it did not."""
    source, sink = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            way()
            text = ""
        except BaseException:
            text = traceback.format_exc()
        os.write(sink, text.encode()[-4000:])
        os.close(sink)
        os._exit(0)
    os.close(sink)
    with os.fdopen(source) as told:
        text = told.read()
    os.waitpid(pid, 0)
    return text


def main() -> None:
    """All ways, or those that every change is tried with."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true")
    ways = ALL if parser.parse_args().all else QUICK
    failures = {way.__name__: outcome_in_fork(way) for way in ways}
    torch.zeros(1, device="cuda")
    print(json.dumps(failures))


if __name__ == "__main__":
    main()
