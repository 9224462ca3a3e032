"""Public logs of compiled training on H100 and H200, compared with the phantom."""
