"""Pages for a browser and drawings, one file per verb."""
