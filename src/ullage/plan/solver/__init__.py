"""The optimisation problem of a plan, and the ways to solve it."""
