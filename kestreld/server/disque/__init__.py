"""Disque's protocol: jobs for any Redis client (docs/jobs.md)."""
