"""Coded rules: what in a snapshot costs memory for nothing, or could be had for less."""
