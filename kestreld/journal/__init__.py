"""Journals on disk: records, segments, recovery, verification and repair; no readers in memory, no protocol."""
