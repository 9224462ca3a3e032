"""Reports for people: text on a terminal, one file per verb."""
