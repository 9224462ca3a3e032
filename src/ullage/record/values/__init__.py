"""Values that programs branch on: known ones, and assumptions about unknown ones."""
