"""Who reaches a server of ullage: addresses, keys, hosts, deadlines, and how many connections."""
