"""A package that is executed at its first use looks, in every way of importing, like any other.

The package is a small one in torch._dynamo's place; an interpreter of its own imports it plainly,
and is what the deferred one is compared with.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.rows import each

INIT = """
'''A compiler.'''
import sys, time
sys.executions = getattr(sys, "executions", 0) + 1
time.sleep(0.02)  # for other threads to come
from . import config
from .tools import helper

def disable(function=None, recursive=True, *, reason=None, wrapping=True):
    if function is None:
        return lambda function: disable(function)
    def disabled(*arguments):
        return "all" if recursive else "alone", function(*arguments)
    return disabled

def graph_break():
    return "broken"
"""
# As torch's modules of settings are: no attribute can be added.
CONFIG = """
import sys, types
class Config(types.ModuleType):
    def __setattr__(self, name, value):
        if name not in ("limit", "__class__"):
            raise AttributeError(name)
        super().__setattr__(name, value)
limit = 8
sys.modules[__name__].__class__ = Config
"""
SOURCES = {
    "fake/__init__.py": "",
    "fake/eager.py": """
def ask():
    import fake.compiler
    fake.compiler.graph_break()
    return fake.compiler.disable(ask, True, wrapping=False)
""",
    "fake/public.py": """
def disable(fn=None, recursive=True):
    import fake.compiler
    return fake.compiler.disable(fn, recursive)
""",
    "fake/compiler/__init__.py": INIT,
    "fake/compiler/config.py": CONFIG,
    "fake/compiler/tools/__init__.py": "from .deep import helper\n",
    "fake/compiler/tools/deep.py": "def helper(): return 7\n",
    "fake/compiler/unused.py": "name = __name__\n",
}
DEFER = """
import sys
sys.path.insert(0, {source!r})
import fake
from ullage.players.inside.steps import compiler
compiler._NAME = "fake.compiler"
compiler._ANSWERS = {{
    ("graph_break", "fake.eager"): compiler._break_nothing,
    ("disable", "fake.eager"): compiler._disable,
    ("disable", "fake.public"): compiler._disable_later,
}}
loaded = []
compiler.defer_import(fake, loaded.append)
"""
WAYS = {
    "import of a submodule": "import fake.compiler.config as c; print(c.limit, c.__spec__.name)",
    "import of a deep submodule": "import fake.compiler.tools.deep as d; print(d.helper())",
    "import of one not loaded": "import fake.compiler.unused as u; print(u.name)",
    "import of one that is not there": """
try:
    import fake.compiler.missing
except ModuleNotFoundError as error:
    print(error)
""",
    "import from": "from fake.compiler import config, tools; print(config.limit, tools.helper())",
    "import all": "from fake.compiler import *; print(config.limit, disable.__name__)",
    "importlib": "import importlib; print(importlib.import_module('.tools', 'fake.compiler'))",
    "spec": "import importlib.util as u; s = u.find_spec('fake.compiler'); print(s.name, s.origin)",
    "spec of a submodule": """
import importlib.util
spec = importlib.util.find_spec('fake.compiler.config')
print(spec.name, spec.origin, spec.parent, spec.loader.get_source('fake.compiler.config'))
""",
    "pkgutil": """
import pkgutil, fake.compiler
print([m.name for m in pkgutil.walk_packages(fake.compiler.__path__, 'fake.compiler.')])
print(pkgutil.resolve_name('fake.compiler.config:limit'))
""",
    "files": """
from importlib.resources import files
print(sorted(p.name for p in files('fake.compiler').iterdir() if p.suffix == '.py'))
""",
    "reload": """
import importlib, fake.compiler
print(importlib.reload(fake.compiler) is fake.compiler, sys.executions)
""",
    "reload of a submodule": """
import importlib, fake.compiler.tools
print(importlib.reload(fake.compiler.tools) is sys.modules['fake.compiler.tools'])
""",
    "pickle": "import pickle; print(pickle.loads(b'cfake.compiler.tools.deep\\nhelper\\n.')())",
    "dir": "import fake.compiler; print(sorted(dir(fake.compiler)), type(fake.compiler))",
    "vars": "import fake.compiler as c; print(sorted(vars(c)), c.__doc__, repr(c), c.__class__)",
    "a setting": """
import fake.compiler
fake.compiler.config.limit = 3
print(sys.modules['fake.compiler.config'].limit)
""",
    "a function replaced": """
import fake.compiler
fake.compiler.graph_break = lambda: 'mine'
print(fake.compiler.config.limit, fake.compiler.graph_break())
""",
    "a function taken away": """
import fake.compiler
del fake.compiler.graph_break
print(hasattr(fake.compiler, 'graph_break'), hasattr(fake.compiler, 'no_such_name'))
""",
    "mock": """
import unittest.mock
with unittest.mock.patch('fake.compiler.config.limit', 1):
    print(sys.modules['fake.compiler.config'].limit)
""",
    "decorators": """
import fake.compiler
def own(): return 1
print(fake.compiler.disable(own) is own, fake.compiler.disable(recursive=False)(own)())
print(fake.compiler.graph_break())
""",
    "run": "import runpy; print(runpy.run_module('fake.compiler.unused')['name'])",
    "threads": """
import threading
found = []
def load():
    import fake.compiler
    found.append(fake.compiler.helper())
threads = [threading.Thread(target=load) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(found, sys.executions)
""",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("source")
    for name, text in SOURCES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def outputs(source: Path, begin: str) -> dict[str, str]:
    """What each way prints, in a fork each of one interpreter that has run `begin`."""
    ways = "".join(
        f"""
sys.stdout.flush()
print("== {name}", flush=True)
pid = os.fork()
if not pid:
    try:
        exec({textwrap.dedent(code)!r}, {{'sys': sys}})
    except BaseException as error:
        print('failed:', repr(error))
    sys.stdout.flush()
    os._exit(0)
os.waitpid(pid, 0)
"""
        for name, code in WAYS.items()
    )
    code = f"import os, sys\nsys.path.insert(0, {str(source)!r})\n{begin}\n{ways}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    parts = done.stdout.split("== ")[1:]
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}


@pytest.fixture(scope="module")
def plain(source: Path) -> dict[str, str]:
    return outputs(source, "")


@pytest.fixture(scope="module")
def deferred(source: Path) -> dict[str, str]:
    return outputs(source, DEFER.format(source=str(source)))


@each("way", WAYS)
def test_a_deferred_package_looks_like_any_other(
    way: str, plain: dict[str, str], deferred: dict[str, str]
) -> None:
    assert plain[way] and "failed:" not in plain[way]
    assert deferred[way] == plain[way]


def test_what_an_eager_program_asks_does_not_execute_it(source: Path) -> None:
    code = f"""{DEFER.format(source=str(source))}
import fake.eager
answer = fake.eager.ask()
print(answer is fake.eager.ask, "fake.compiler.config" in sys.modules, len(loaded))
import fake.compiler.config
print(len(loaded), fake.eager.ask() is fake.eager.ask)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True False 0", "1 False"]


def test_a_function_that_is_not_to_be_compiled_is_so_once_something_may_be(source: Path) -> None:
    code = f"""{DEFER.format(source=str(source))}
from fake.public import disable
@disable
def whole(x): return x
@disable(recursive=False)
def alone(x): return x
print(whole(1), alone(2), whole.__name__, "fake.compiler.config" in sys.modules)
import fake.compiler.config
print(whole(1), alone(2))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1 2 whole False", "('all', 1) ('alone', 2)"]


def test_a_package_that_fails_fails_as_an_import_does(source: Path, tmp_path: Path) -> None:
    package = tmp_path / "fake" / "compiler"
    package.mkdir(parents=True)
    (tmp_path / "fake" / "__init__.py").touch()
    (package / "__init__.py").write_text("raise ImportError('no sympy')\n")
    code = f"""{DEFER.format(source=str(tmp_path))}
try:
    import fake.compiler.config
except ImportError as error:
    print(error, "fake.compiler" in sys.modules, loaded)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["no sympy False []"]
