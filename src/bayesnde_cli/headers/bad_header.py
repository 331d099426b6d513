"""The one error of this room; who reads a file says whose it is and what to do."""


class BadHeader(Exception):
    """A header that is cut off, contradicts itself, or asks for what cannot be."""
