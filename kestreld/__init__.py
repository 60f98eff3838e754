"""kestreld: a durable, Kestrel-compatible queue server."""

__version__ = "1.0.0"
