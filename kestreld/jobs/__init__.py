"""Jobs with acknowledgement, as Disque's, on one node: states, queues, timers, and the log on disk.

docs/jobs.md describes them.
"""
