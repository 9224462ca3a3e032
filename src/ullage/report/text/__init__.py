"""Text reports for the terminal, one file per verb."""
