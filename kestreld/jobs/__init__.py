"""Jobs with acknowledgement: Disque's, on one node (docs/jobs.md). `cluster` shares them between nodes."""
