"""Screens of the console: overview, details, journal, jobs, nodes, help, and dialogs."""
