"""How large a batch of a guarded step can be."""
