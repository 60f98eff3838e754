"""Shell completions and man pages, generated from the command tree by `python -m kestrelctl.description`."""
