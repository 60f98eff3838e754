"""What ends a run with one line instead of a traceback."""


class Unusable(Exception):
    """Something that is needed is missing, or failed. The words say what."""
