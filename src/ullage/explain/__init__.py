"""What a record means: who owned the memory, when it peaked, whether it fits."""
