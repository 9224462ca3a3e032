"""The watched process: what is switched on when torch arrives, and the record at its end."""
