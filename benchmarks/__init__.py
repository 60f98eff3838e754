"""kestreld beside other servers, and beside itself with more to carry.

`make bench` measures and `make bench-report` writes it up. A package of this repository only, not of the installed
product. What is measured goes to results/ as JSON; tables and plots are made from that, never from a run directly.
"""
