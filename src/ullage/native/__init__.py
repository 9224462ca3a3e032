"""The C parts: how they are built, where the libraries are."""
