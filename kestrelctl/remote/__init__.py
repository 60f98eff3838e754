"""Servers: how to reach them, what is asked of them, several as one."""
