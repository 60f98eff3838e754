"""The verbs of kestrelctl, one file each: parse, ask the client, hand a value to `output`."""
