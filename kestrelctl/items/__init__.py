"""Items on their way: read, put, taken, moved, written out, counted."""
