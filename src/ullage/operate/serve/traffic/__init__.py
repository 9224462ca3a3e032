"""Requests to a language model's server, as columns; read from public traces or generated.

    traffic = load_traffic("conversation_trace.jsonl")
    traffic = load_traffic("poisson:rate=2,prompt=1000,output=200,duration=10m,seed=0")

traffic.py has the record, readers.py reads files, spec.py parses the text of a generator, and
generators.py draws the requests. It needs numpy alone.
"""

from ullage.operate.serve.traffic.load import load_traffic
from ullage.operate.serve.traffic.traffic import Traffic, concatenate

__all__ = ["Traffic", "concatenate", "load_traffic"]
