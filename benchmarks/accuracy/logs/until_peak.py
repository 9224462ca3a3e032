"""Runs a program until it prints its peak: python until_peak.py PROGRAM

What the programs do after that line, they do for their contest: they pack the weights, and evaluate
them again.
"""

import builtins
import runpy
import sys
from typing import Any

PEAK = "peak memory allocated:"
_print = builtins.print


def print_until_peak(*values: Any, **options: Any) -> None:
    """Prints, and ends the program after the line with its peak."""
    _print(*values, **options)
    if values and str(values[0]).startswith(PEAK) and "file" not in options:
        sys.stdout.flush()
        raise SystemExit(0)


if __name__ == "__main__":
    program = sys.argv[1]
    sys.argv = sys.argv[1:]
    builtins.print = print_until_peak
    runpy.run_path(program, run_name="__main__")
