"""Replays a plan with real numbers on the CPU, inside the process of the program. The training with
the plan is compared with the training without it before the user gets the plan.
"""
