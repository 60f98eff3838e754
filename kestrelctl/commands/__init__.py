"""The verbs of kestrelctl, one module each: parse options, ask a client, pass the result to `output`."""
