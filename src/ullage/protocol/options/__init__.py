"""The options of each verb: one record, from which its command line, its Python function and its
section of ullage.toml follow.
"""
