"""How much memory other allocator settings would reserve for the requests of a snapshot."""
