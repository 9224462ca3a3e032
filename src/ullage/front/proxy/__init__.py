"""The front as a program: an ASGI application between clients and engines."""
