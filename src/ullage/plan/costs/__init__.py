"""The costs of a program: its work, its memory over time, and what treatments change of them."""
