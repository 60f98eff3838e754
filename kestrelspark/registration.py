"""Built into the wheel as the package pyspark_kestrel: Spark looks for such names, and finds our format there."""

from contextlib import suppress

# Without the extra `spark` there is no such format. An error would hide those of other packages, too.
with suppress(ModuleNotFoundError):
    from kestrelspark.batch import KestrelSource as DefaultSource  # noqa: F401
