"""Pages in the terminal, which ssh carries as well."""
