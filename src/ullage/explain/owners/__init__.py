"""Who owned the memory: categories, modules, call sites and names."""
