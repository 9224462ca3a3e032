"""Parts of reports about the time of a step."""
