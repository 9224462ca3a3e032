"""Starts the package coverage in a process that imports ullage; lines.py runs it.

In the clone `ullage/__init__.py` ends with a line that runs this file, and the programs in
ullage/ground/programs, which import nothing of ullage, begin with it. So it runs in pytest's
processes, in commands, in fork servers, and in the user's programs, whose interpreter has no
coverage. A process that is forked is measured by itself, and one that ends by os._exit, too.

Globals that it is given: PACKAGE, the folder of ullage; COVERAGE, the folder that coverage is in;
DATA, the folder for the lines of each process.
"""

import sys

given = globals()
if "coverage" not in sys.modules:  # a forked process may import ullage anew
    sys.path.insert(0, given["COVERAGE"])
    import coverage

    sys.path.remove(given["COVERAGE"])
    measured = coverage.Coverage(
        data_file=f"{given['DATA']}/lines", include=[f"{given['PACKAGE']}/*"], config_file=False,
        messages=False,
    )  # fmt: skip
    for option, value in {
        "run:parallel": True,
        "run:patch": ["fork", "_exit"],
        "run:disable_warnings": ["no-data-collected"],
    }.items():
        measured.set_option(option, value)
    measured._auto_save = True
    measured.start()
