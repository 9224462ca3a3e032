"""The compact file of a snapshot: its columns, packed, in a container that says what is where."""
