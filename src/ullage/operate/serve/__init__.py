"""Servers: traffic, the engine that answers it on the phantom in virtual time, and the report.

traffic/     requests as columns: public traces, and generators
"""
