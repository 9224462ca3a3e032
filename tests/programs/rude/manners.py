"""Changes everything around it that a program can change, before torch and after."""

import faulthandler
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import types

own = tempfile.mkdtemp()
os.chdir(own)
os.environ["TMPDIR"] = own
signal.signal(signal.SIGTERM, lambda number, frame: None)
sys.excepthook = lambda kind, error, traceback: None
threading.excepthook = lambda arguments: None
faulthandler.enable()
resource.setrlimit(resource.RLIMIT_AS, (20 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))

import torch

kept = torch.zeros(16 << 20, dtype=torch.uint8, device="cuda")
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
sys.excepthook = lambda kind, error, traceback: None
sys.modules["__main__"] = types.ModuleType("__main__")
print("before", flush=True)
shutil.rmtree(own)
os.umask(0o777)
os.environ.clear()
for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
    resource.setrlimit(limit, (0, resource.getrlimit(limit)[1]))
sys.stdout.close()
os.closerange(0, 1024)
