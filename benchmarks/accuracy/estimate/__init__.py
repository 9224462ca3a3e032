"""`ullage estimate` of training against the phantom."""
