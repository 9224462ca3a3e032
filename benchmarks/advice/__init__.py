"""Whether advice helps: programs that run out of memory, and what is advised of them, tried."""
