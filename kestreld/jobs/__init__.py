"""Jobs with acknowledgement: Disque's, on one node (docs/jobs.md)."""
