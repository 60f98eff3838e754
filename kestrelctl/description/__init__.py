"""The command tree written down: completions for three shells, and the man pages.

`python -m kestrelctl.description` writes them into a checkout.
"""
