"""The journal of a queue on disk: records, segments, recovery; knows no reader's memory and no protocol."""
