"""What may be wrong with a server and the machine it runs on, and what to do about it."""
