"""Calls a function that another process has sent.

Started by `ullage.measure`, and by nothing else: what stands on the standard input is pickled, and
unpickling runs code. Two pickles follow each other: the sender's `sys.path`, and the function.
"""

import pickle
import sys


def main() -> None:
    """Reads the function, and calls it without arguments."""
    with sys.stdin.buffer as stream:
        known = {*sys.path}
        # The modules that the function refers to by name are found as in the sender.
        sys.path[:0] = [path for path in pickle.load(stream) if path not in known]
        function = pickle.load(stream)
    function()


if __name__ == "__main__":
    main()
