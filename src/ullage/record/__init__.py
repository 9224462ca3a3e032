"""What happens inside the watched process: events, phases, owners, values, and their record.

Everything here runs in the user's own interpreter, beside the user's torch: standard library and
torch, nothing else.
"""
