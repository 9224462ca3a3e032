"""Decoder language models, with attention, with state-space layers, and with experts."""
