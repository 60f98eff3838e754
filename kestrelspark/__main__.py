"""The jobs from a shell: kestrelctl spark JOB, python -m kestrelspark JOB, or spark-submit with this file."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from kestreld.errors import KestrelError
from kestrelspark.session import SparkMissing, session

NO_INPUT, MISSING, USAGE, CANNOT_CREATE, NEGATIVE = 66, 87, 2, 73, 1


def main(arguments: Sequence[str] | None = None, program: str = "kestrelspark") -> int:
    """Run one job; returns its exit code. Findings go to stdout, words to stderr."""
    chosen = _parser(program).parse_args(arguments)
    try:
        with_delta = getattr(chosen, "format", "") == "delta"
        spark = session(f"kestrel {chosen.job}", chosen.master or None, dict(chosen.conf), with_delta=with_delta)
        return int(JOBS[chosen.job](spark, chosen))
    except SparkMissing as problem:
        return _fail(str(problem), MISSING)
    except FileNotFoundError as problem:
        return _fail(str(problem), NO_INPUT)
    except FileExistsError as problem:
        return _fail(str(problem), CANNOT_CREATE)
    except KestrelError as problem:
        return _fail(str(problem), USAGE)


def _fail(words: str, code: int) -> int:
    _say(words)
    return code


def _say(words: str) -> None:
    print(f"kestrelspark: {words}", file=sys.stderr)


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(program, description="Look through journals with Spark.")
    jobs = parser.add_subparsers(dest="job", required=True, metavar="JOB")
    of_spark = argparse.ArgumentParser(add_help=False)
    of_spark.add_argument(
        "--master", default="", help="the Spark to run on (default local[*]); spark-submit says its own"
    )
    of_spark.add_argument("--conf", action="append", default=[], type=_setting, metavar="NAME=VALUE", help="of Spark")
    common = argparse.ArgumentParser(add_help=False, parents=[of_spark])
    common.add_argument("paths", nargs="+", metavar="PATH", help="spools, archives, folders of them, files; globs")
    common.add_argument(
        "--queue", action="append", default=[], help="only this queue; may be a pattern, may be repeated"
    )
    rows = argparse.ArgumentParser(add_help=False)
    rows.add_argument("--since", default="", metavar="TIME", help="2025-01-31T12:00 (UTC), or milliseconds since 1970")
    rows.add_argument("--until", default="", metavar="TIME", help="up to this time, not included")
    rows.add_argument(
        "--mode", default="", choices=["PERMISSIVE", "DROPMALFORMED", "FAILFAST"], help="what to do about damage"
    )
    jobs.add_parser("verify", parents=[common], help="check every record of every journal")
    report = jobs.add_parser("report", parents=[common, rows], help="load, waits and backlog of every queue")
    report.add_argument("--to", required=True, metavar="FOLDER", help="for report.html and the Parquet tables")
    report.add_argument("--bucket", type=int, default=0, metavar="SECONDS", help="time between two points")
    convert = jobs.add_parser("convert", parents=[common, rows], help="journals to Parquet")
    convert.add_argument("--to", required=True, metavar="FOLDER", help="for the Parquet files")
    convert.add_argument("--values", action="store_true", help="with the items' data")
    convert.add_argument("--overwrite", action="store_true", help="replace what is in FOLDER")
    _add_ingest(jobs.add_parser("ingest", parents=[of_spark], help="what is new in queues to Parquet"))
    return parser


def _add_ingest(ingest: argparse.ArgumentParser) -> None:
    ingest.add_argument("queues", nargs="+", metavar="QUEUE", help="names of queues")
    ingest.add_argument("--servers", required=True, metavar="SERVERS", help="HOST:PORT,HOST:PORT or @FILE")
    ingest.add_argument("--reader", default="", metavar="NAME", help="whose place on the queues to use")
    ingest.add_argument("--to", required=True, metavar="FOLDER", help="for the files")
    ingest.add_argument("--format", default="parquet", choices=["parquet", "delta"], help="of what is in the folder")
    ingest.add_argument("--every", type=int, default=0, metavar="SECONDS", help="go on, with a batch so often")
    ingest.add_argument(
        "--option", action="append", default=[], type=_setting, metavar="NAME=VALUE", help="of the stream"
    )


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _choice(chosen: argparse.Namespace) -> Any:
    from kestrelspark.jobs.convert import Choice

    return Choice(tuple(chosen.queue), chosen.since, chosen.until, chosen.mode)


def _verify(spark: Any, chosen: argparse.Namespace) -> int:
    from kestrelspark.jobs.verify import verify

    verdict = verify(spark, chosen.paths, chosen.queue)
    for finding in verdict.findings:
        print(finding)
    megabytes = verdict.size_bytes / 1e6
    _say(
        f"{verdict.files} files, {megabytes:,.1f} MB, {verdict.records:,} records: "
        + (f"{len(verdict.findings)} findings" if verdict.findings else "all is well")
    )
    return verdict.code


def _report(spark: Any, chosen: argparse.Namespace) -> int:
    from kestrelspark.jobs.page import page
    from kestrelspark.jobs.report import report, write_tables

    found = report(spark, chosen.paths, _choice(chosen), chosen.bucket)
    if found is None:
        return _fail("nothing has happened in these journals", NEGATIVE)
    os.makedirs(chosen.to, exist_ok=True)
    write_tables(found, chosen.to)
    target = os.path.join(chosen.to, "report.html")
    with open(target, "w", encoding="utf-8") as file:
        file.write(page(found))
    print(target)
    return 0


def _convert(spark: Any, chosen: argparse.Namespace) -> int:
    from kestrelspark.jobs.convert import convert

    count = convert(
        spark, chosen.paths, chosen.to, _choice(chosen), with_values=chosen.values, overwrite=chosen.overwrite
    )
    _say(f"{count:,} rows in {chosen.to}")
    return 0


def _ingest(spark: Any, chosen: argparse.Namespace) -> int:
    from kestrelspark.jobs.ingest import Queues, ingest

    options = {**dict(chosen.option), "subscribe": ",".join(chosen.queues)}
    count = ingest(spark, Queues(chosen.servers, chosen.reader, options), chosen.to, chosen.every, chosen.format)
    _say(f"{count:,} items more in {chosen.to}")
    return 0


JOBS: Final = {"verify": _verify, "report": _report, "convert": _convert, "ingest": _ingest}

if __name__ == "__main__":
    sys.exit(main())
