"""Keeps README.md and the pages of docs true: runs their commands, and compares the output.

    python -m benchmarks.documents --check                  # exits with 1 on a difference
    python -m benchmarks.documents --write README.md        # rewrite what a page prints
    python -m benchmarks.documents --write --nightly        # of all pages, the slow commands too

A ```console block is run as typed, a ```python block as a script. Each page has a directory of its
own in which its blocks run in order; `recipes.py` says what that directory holds beforehand. What a
command prints is compared with what stands below it, but for what differs from run to run
(`outputs.py` lists it); a line `...` stands for any lines, and a command with nothing below it may
print anything.

A comment right before a block says what else holds for it:

    <!-- place: NAME -->                     it runs in another directory of this page
    <!-- file: NAME -->                      it is a file in that directory, or in all of the page's
    <!-- nightly: WHY -->                    it takes long: run by `make nightly`
    <!-- not run: WHY -->                    it prints nothing here; its options are checked
    <!-- not run: WHY; DATE, COMMAND -->     it prints what COMMAND did on DATE

What a benchmark writes stands between `<!-- NAME: written by COMMAND -->` and `<!-- end NAME -->`.
"""
