"""Bytes to commands and back; knows no queue, no socket and no clock."""
