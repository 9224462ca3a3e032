"""A plan replayed with real numbers on the CPU, inside the process of the program: what is trained
under it is compared with what is trained without it, before anybody is handed the plan.
"""
