"""Servers by what they print: logs of vLLM and SGLang, and saved pages of their metrics."""
