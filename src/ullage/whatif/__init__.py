"""What other settings of the allocator would have reserved: a snapshot's requests, made again."""
