"""How a plan is applied to a running program, and undone."""
