"""45 programs of the wild, run whole and stopped early: docs/results/programs.md."""
