"""Spark for queues and journals: journals as tables, rows into queues, queues as streams, and jobs on them."""
