"""A session in the manner of a notebook: a main module without a file, cells that keep their values
as Out[n], _n and _, and an exception that stays in sys.last_traceback.

    cells.py held        what a later peak finds there, and the table of names
    cells.py attach DIR  the cell that attaches runs again
"""

from __future__ import annotations

import code
import json
import sys
from types import ModuleType

MIB = 1 << 20


class Session(code.InteractiveInterpreter):
    """Runs cells; keeps the value of each."""

    def __init__(self) -> None:
        module = ModuleType("__main__")
        sys.modules["__main__"] = module
        super().__init__(module.__dict__)
        self.namespace = module.__dict__
        self.namespace["Out"] = {}
        self.count = 0
        sys.displayhook = self.keep
        sys.excepthook = lambda *_: None

    def keep(self, value: object) -> None:
        if value is not None:
            self.namespace["Out"][self.count] = value
            self.namespace[f"_{self.count}"] = self.namespace["_"] = value

    def cell(self, source: str) -> None:
        self.count += 1
        is_statement = "\n" in source
        self.runsource(
            source, f"<ipython-input-{self.count}-0>", "exec" if is_statement else "single"
        )


TRAIN = """
def train(num_mib):
    rows = torch.empty(num_mib << 20, dtype=torch.uint8, device="cuda")
    model.eval()  # no call of eval(), which could ask for the variables
    raise ValueError("no labels")
"""
STEPS = """
for _step in range(4):
    model(torch.ones(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
STORE = """
try:
    train(24)
except ValueError as error:
    failure = error
"""
HANDLE = """
try:
    train(40)
except ValueError:
    in_hand = holders()
"""


def hold(session: Session) -> None:
    from ullage.players.inside import holders

    session.namespace["holders"] = holders
    session.cell("import torch")
    session.cell("model = torch.nn.Linear(1024, 1024).cuda()")
    session.cell("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)")
    session.cell("batch = torch.empty(16 << 20, dtype=torch.uint8, device='cuda')")
    session.cell("torch.empty(32 << 20, dtype=torch.uint8, device='cuda')")
    session.cell(TRAIN)
    session.cell("train(96)")
    session.cell(STORE)
    session.cell(STEPS)
    session.cell("large = torch.empty(512 << 20, dtype=torch.uint8, device='cuda')")
    session.cell(HANDLE)
    tables = {name: session.namespace.get(name, holders()) for name in ("in_hand", "at_end")}
    session.cell("del batch, failure")
    session.cell("1 / 0")  # the remedy of the traceback
    session.namespace["Out"].clear()
    session.cell("del _5, _")
    tables["afterwards"] = holders()
    rows = {
        name: [[row.num_bytes // MIB, *zip(row.holders, row.remedies, strict=True)]
               for row in table.tensors]
        for name, table in tables.items()
    }  # fmt: skip
    print(json.dumps({"rows": rows, "text": repr(tables["at_end"])}))


ATTACH = 'recording = record.attach("a.pickle", mode="events", publish=False)'
FINALLY = """
try:
    torch.ones(1 << 20, device="cuda")
    raise KeyError("its own")
finally:
    file = recording.detach()
"""


def attach(session: Session, directory: str) -> None:
    from ullage import record

    session.namespace["record"] = record
    session.cell("import torch, os")
    session.cell(f"os.chdir({directory!r})")
    for statement in (
        ATTACH,
        "first = recording",
        ATTACH,
        "second = recording",
        ATTACH.replace("a.pickle", "b.pickle"),
        "third = recording",
    ):
        session.cell(statement)
        session.cell("torch.ones(1 << 20, device='cuda');")
    session.cell(FINALLY)
    space = session.namespace
    first, second, third = (space[name] for name in ("first", "second", "third"))
    print(json.dumps({
        "is_same": first is second, "is_other": third is not first,
        "files": [each.path and each.path.name for each in (first, third)],
        "attached": [each.is_attached for each in (first, third)],
        "file": str(space["file"]), "again": third.detach(),
    }))  # fmt: skip


def main() -> None:
    arguments = sys.argv[1:]
    sys.path[:0] = arguments[2:]  # where ullage is
    session = Session()
    if arguments[0] == "held":
        hold(session)
    else:
        attach(session, arguments[1])


main()
