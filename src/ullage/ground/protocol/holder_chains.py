"""The chain of a holder: by which root a program keeps a tensor, and how it lets it go.

    batch in train()                               a variable
    Out[3]  _3  builtins._                         the output of a cell
    x in train() of cell 5 (sys.last_traceback)    a frame of the last exception that nobody caught
    x in train() (traceback of failure in run.py)  a frame of an exception that the program has

The recorder writes chains, the rules and tables read them.
"""

from __future__ import annotations

import enum
import re

MAIN = "__main__"
"""The place of the variables of a session, or of a program without a file."""
HANDLED = "sys.exception()"
"""The exception that an `except` or a `finally` is at."""
LAST_ERRORS = (
    "sys.last_",
    "get_ipython().InteractiveTB",
    "get_ipython().last_execution_result.error",
)
"""How the names begin under which an interactive session keeps its last exception."""
_NAME = re.compile(r"\w+")
_OF_ERROR, _OF_VARIABLE = " (traceback of ", " in "


class Root(enum.Enum):
    """Where a chain begins."""

    VARIABLE = "variable"
    OUTPUT = "output of a cell"
    LAST_ERROR = "last error"
    EXCEPTION = "exception"


_REMEDIES = {
    Root.VARIABLE: "del the name, or what holds it",
    Root.OUTPUT: "%reset -f out, and get_ipython().user_ns_hidden.update(_=0, __=0, ___=0), as "
    "IPython has more names of a value than Out; a ; at the end of a cell keeps its value out",
    Root.LAST_ERROR: "run a cell that fails at once, such as 1/0: its traceback replaces this one",
    Root.EXCEPTION: "keep str(error), not the exception, or error.with_traceback(None)",
}
_AFTER_EXCEPT = "retry after the except or finally, not in it: the exception goes when it ends"
_OTHER_VALUE = "run something that has another value, such as 0"
# Tried with IPython: each frees the value, whatever other names IPython has for it.
_OF_OUTPUTS = (
    (re.compile(r"Out\[(\d+)\]"), r"del Out[\1], and then %xdel _\1"),
    (re.compile(r"(_\d+|_{1,3})(?!\w)"), r"%xdel \1"),
    (re.compile(r"(get_ipython\(\)\.user_ns_hidden\['\w+'\])"), r"del \1"),
    (re.compile(r"get_ipython\(\)\.(displayhook|last_execution_result)|builtins\._"), _OTHER_VALUE),
)


def root_of(chain: str) -> Root:
    """The root of a chain, by its text."""
    if chain.startswith(LAST_ERRORS) or any(f" ({name}" in chain for name in LAST_ERRORS):
        return Root.LAST_ERROR
    if _OF_ERROR in chain or chain.startswith(HANDLED):
        return Root.EXCEPTION
    return Root.VARIABLE if _OF_VARIABLE in chain else Root.OUTPUT


def traceback_of(chain: str) -> str:
    """How the frames of an exception are called that has this chain."""
    if chain.startswith("sys.last_"):
        return "sys.last_traceback"
    if chain.startswith(LAST_ERRORS):
        return chain
    return f"traceback of {chain}"


def remedy_for(chain: str) -> str:
    """The remedy that releases a tensor that is held by a chain."""
    if f"{_OF_ERROR}{HANDLED}" in chain or chain.startswith(HANDLED):
        return _AFTER_EXCEPT
    root = root_of(chain)
    if root is Root.VARIABLE and chain.endswith(f"{_OF_VARIABLE}{MAIN}"):
        name = _NAME.match(chain)
        return f"del {name[0]}" if name is not None else _REMEDIES[root]
    if root is Root.OUTPUT:
        for pattern, remedy in _OF_OUTPUTS:
            match = pattern.match(chain)
            if match is not None:
                return match.expand(remedy)
    return remedy_of_root(root)


def remedy_of_root(root: Root) -> str:
    """The remedy that releases all that has such a root."""
    return _REMEDIES[root]
