"""Workloads beside a decoder's cache, held against the real libraries on the phantom."""
