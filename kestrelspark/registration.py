"""Packaged as pyspark_kestrel: Spark looks for packages of such names and finds the format "kestrel" in it."""

from contextlib import suppress

# Without the extra `spark` the format is not available. An error would hide the formats of other packages, too.
with suppress(ModuleNotFoundError):
    from kestrelspark.batch import KestrelSource as DefaultSource  # noqa: F401
