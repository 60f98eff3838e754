"""Checks of `kestrelctl doctor`: faults of a server and its machine, with the remedy for each."""
