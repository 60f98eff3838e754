"""Entry point of `python -m kestrelctl`."""

from kestrelctl.app import main

main()
