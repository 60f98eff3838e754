"""kestreld: a durable, Kestrel-compatible queue server."""

__version__ = "0.1.0"
