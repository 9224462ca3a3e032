"""Workloads and budgets that plans are searched for, and what is checked of the answers."""
