"""The meaning of a record: who owned the memory, when it peaked, whether it fits."""
