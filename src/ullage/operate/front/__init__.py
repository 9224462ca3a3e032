"""A front for servers of language models that admits requests by the cache bytes they will take."""
