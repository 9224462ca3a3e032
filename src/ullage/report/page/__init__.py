"""HTML pages and drawings, one file per verb."""
