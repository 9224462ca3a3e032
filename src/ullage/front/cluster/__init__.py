"""The front's policy where another program has the sockets: a request router of Ray Serve."""
