"""kestrelctl, the command line for kestreld and for servers of the original Kestrel."""
