"""Disque's cluster as pure state machines: no socket, no disk, no clock of their own."""
