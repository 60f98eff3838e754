"""Connections and turns: the only room that knows the event loop."""
