"""Connections, turns, admission and the wire protocols; nothing below it uses the event loop."""
