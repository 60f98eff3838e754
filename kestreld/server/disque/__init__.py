"""Disque's protocol, executed on the jobs, and this node of a cluster (docs/jobs.md)."""
