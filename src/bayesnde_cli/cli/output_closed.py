"""The reader of our standard output went away, as `| head` does: no error, but no reason to go on."""


class OutputClosed(Exception):
    """Nobody reads our output any more."""
