"""How jobs are run, singly and many: from a job to the report of its run."""
