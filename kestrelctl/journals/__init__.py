"""Journals on disk, read without their server: what they hold, what they held, and whether they are whole."""
