"""Journals on disk, read without their server: contents, history, verification, repair, migration and replay."""
