"""Cluster of job nodes, as Disque's: pure state machines without sockets, disk or a clock of their own."""
