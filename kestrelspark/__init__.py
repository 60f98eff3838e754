"""Spark over queues and journals: a batch source, and jobs that verify, report on and convert journals."""
