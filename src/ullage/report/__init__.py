"""The views and documents of results: which blocks and fields they have; computes nothing."""
