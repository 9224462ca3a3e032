"""`ullage estimate --train` against the phantom."""
