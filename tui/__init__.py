"""The live console of `kestrelctl top` and `web`, which shows servers by the figures that they report."""
