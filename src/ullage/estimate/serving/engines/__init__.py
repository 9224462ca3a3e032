"""How serving engines lay memory out: one module for each, by the rules of its own source."""
