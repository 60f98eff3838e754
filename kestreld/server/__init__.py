"""Connections, turns, admission and the wire protocols; the only package that uses the event loop."""
