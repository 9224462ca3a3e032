"""How the ranks of a distributed training agree that one of them has run out of memory."""
