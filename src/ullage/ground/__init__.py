"""The lowest row, of the standard library alone: units, errors, files, tables of options, native
libraries.
"""
