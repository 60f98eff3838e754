"""The Spark session: one for this machine, or the one of spark-submit."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

from kestreld.errors import KestrelError

JAVA_MIN: Final = 17
# Arrow's bounds checks cost the JVM a fifth of its time; data made by pyarrow does not need them.
_ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC {_ARROW}",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "64",
    "spark.log.level": "ERROR",
}
DELTA_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


class SparkMissing(KestrelError):
    """Something that Spark needs is not installed; the message says how to install it."""


def session(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None, *, with_delta: bool = False
) -> Any:
    """The running session, or a new one for `master`, by default local[*]. Raises SparkMissing.

    Under spark-submit its own settings apply. `with_delta`: the session can write Delta tables, with the jars of
    `spark.jars`, or else with jars that Spark fetches.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as problem:
        raise SparkMissing(f"{problem.name} is not installed: pip install 'kestreld[spark]'") from problem
    from kestrelspark.batch import register

    running = SparkSession.getActiveSession()
    if running is None:
        check_java()
        # Workers would otherwise run the python3 on PATH, without our packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if _is_local(master):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = SparkSession.builder.appName(name)
        if not _submitted():
            builder = builder.master(master or "local[*]")
            for key, value in {**SETTINGS, **_progress(), **(DELTA_SETTINGS if with_delta else {})}.items():
                builder = builder.config(key, value)
            if with_delta and "spark.jars" not in (settings or {}):
                builder = _with_delta(builder)
        for key, value in (settings or {}).items():
            builder = builder.config(key, value)
        running = builder.getOrCreate()
    register(running)
    return running


def _with_delta(builder: Any) -> Any:
    """Add Delta's jars. Raises SparkMissing."""
    try:
        from delta import configure_spark_with_delta_pip
    except ModuleNotFoundError as problem:
        raise SparkMissing("delta-spark is not installed: pip install delta-spark") from problem
    return configure_spark_with_delta_pip(builder)


def _is_local(master: str | None) -> bool:
    return master is None or master.startswith("local")


def _submitted() -> bool:
    """True if this process was started by spark-submit."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _progress() -> dict[str, str]:
    return {"spark.ui.showConsoleProgress": "true" if sys.stderr.isatty() else "false"}


def check_java() -> None:
    """Raise SparkMissing if there is no Java that Spark can use."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    advice = f"Spark needs Java {JAVA_MIN} or newer: apt install default-jre-headless, or set JAVA_HOME"
    if java is None:
        raise SparkMissing(f"java not found on PATH; {advice}")
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError) as problem:
        raise SparkMissing(f"cannot run {java}: {problem}; {advice}") from problem
    version = java_version(output)
    if version < JAVA_MIN:
        raise SparkMissing(f"{java} is Java {version}; {advice}")


def java_version(output: str) -> int:
    """The major version in the output of `java -version`; 0 if there is none."""
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(found[1]) if found else 0
