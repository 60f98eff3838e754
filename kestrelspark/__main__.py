"""Command line of the Spark jobs: kestrelctl spark JOB, python -m kestrelspark JOB, or by spark-submit."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from kestrelctl.journals.replaying import Pace, parse_rate, parse_speed
from kestrelctl.shell.exit_codes import Failure
from kestrelctl.shell.output import write_rows
from kestrelctl.verbs import VERBS
from kestreld.client.blocks import Cell
from kestreld.errors import KestrelError
from kestrelspark.failures import failure_in
from kestrelspark.session import SparkMissing, session

NO_INPUT, MISSING, USAGE, CANNOT_CREATE, IO, NEGATIVE = 66, 87, 2, 73, 74, 1
NO_BAR: Final = {"spark.ui.showConsoleProgress": "false"}  # of Spark, in the place of ours
URL: Final = re.compile(r"[a-z][a-z0-9+.-]*:/")


def main(arguments: Sequence[str] | None = None, program: str = "kestrelspark") -> int:
    """Run one job and return its exit code. Results go to stdout, messages to stderr."""
    chosen = _parser(program).parse_args(arguments)
    try:
        with_delta = getattr(chosen, "format", "") == "delta"
        settings = {**(NO_BAR if chosen.job == "ingest" else {}), **dict(chosen.conf)}
        spark = session(f"kestrel {chosen.job}", chosen.master or None, settings, with_delta=with_delta)
        return _run(spark, chosen)
    except SparkMissing as problem:
        return _fail(str(problem), MISSING)
    except FileNotFoundError as problem:
        return _fail(str(problem), NO_INPUT)
    except FileExistsError as problem:
        return _fail(str(problem), CANNOT_CREATE)
    except KestrelError as problem:
        return _fail(str(problem), USAGE)
    except Failure as problem:
        return _fail(problem.words, problem.code)
    except OSError as problem:
        return _fail(f"{problem.filename or ''}: {(problem.strerror or str(problem)).lower()}", IO)


def _run(spark: Any, chosen: argparse.Namespace) -> int:
    """Run the job. Raises Failure for errors within Spark."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return int(JOBS[chosen.job](spark, chosen))
    except (PySparkException, Py4JError) as problem:
        raise failure_in(str(problem)) from problem


def _fail(words: str, code: int) -> int:
    _say(words)
    return code


def _say(words: str) -> None:
    print(f"kestrelspark: {words}", file=sys.stderr)


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(program, description="Analyse journals with Spark.")
    jobs = parser.add_subparsers(dest="job", required=True, metavar="JOB")
    of_spark = argparse.ArgumentParser(add_help=False)
    of_spark.add_argument(
        "--master", default="", help="the Spark to run on (default local[*]); spark-submit has its own"
    )
    of_spark.add_argument(
        "--conf", action="append", default=[], type=_setting, metavar="NAME=VALUE", help="a setting of Spark"
    )
    queues = argparse.ArgumentParser(add_help=False)
    queues.add_argument("--queue", action="append", default=[], help="only this queue, or a pattern; may be repeated")
    common = argparse.ArgumentParser(add_help=False, parents=[of_spark, queues])
    common.add_argument(
        "paths", nargs="+", metavar="PATH", help="spools, archives, folders of them, or files; may be globs"
    )
    rows = argparse.ArgumentParser(add_help=False)
    rows.add_argument("--since", default="", metavar="TIME", help="2025-01-31T12:00 (UTC), or milliseconds since 1970")
    rows.add_argument("--until", default="", metavar="TIME", help="up to this time, not included")
    rows.add_argument(
        "--mode", default="", choices=["PERMISSIVE", "DROPMALFORMED", "FAILFAST"], help="how to handle damage"
    )
    verify = jobs.add_parser("verify", parents=[common], help="check every record of every journal")
    verify.add_argument(
        "--state", default=None, type=_path, metavar="FILE", help="save the state there; read only what is new"
    )
    report = jobs.add_parser("report", parents=[common, rows], help="load, waits and backlog of every queue")
    report.add_argument(
        "--to", required=True, type=_path, metavar="FOLDER", help="for report.html and the Parquet tables"
    )
    report.add_argument("--bucket", type=int, default=0, metavar="SECONDS", help="time between two points")
    report.add_argument(
        "--state", default="", type=_path, metavar="FOLDER", help="keep rows there; read only what is new"
    )
    convert = jobs.add_parser("convert", parents=[common, rows], help="journals to Parquet")
    convert.add_argument("--to", required=True, metavar="FOLDER", help="for the Parquet files")
    convert.add_argument("--values", action="store_true", help="include the items' data")
    convert.add_argument("--overwrite", action="store_true", help="replace the content of FOLDER")
    convert.add_argument(
        "--state", default="", type=_path, metavar="FILE", help="save the state there; add only what is new"
    )
    _add_compare(jobs.add_parser("compare", parents=[of_spark, queues], help="compare two periods or two reports"))
    _add_replay(jobs.add_parser("replay", parents=[common, rows], help="put items of journals on queues again"))
    _add_ingest(jobs.add_parser("ingest", parents=[of_spark], help="new items of queues to Parquet"))
    for name, job in jobs.choices.items():
        lines = [line.replace("kestrelctl spark", program) for line in VERBS[f"spark {name}"].examples]
        job.epilog = "\n  ".join(["examples:", *lines])
        job.formatter_class = argparse.RawDescriptionHelpFormatter
    return parser


def _add_ingest(ingest: argparse.ArgumentParser) -> None:
    ingest.add_argument("queues", nargs="+", metavar="QUEUE", help="names of queues")
    ingest.add_argument("--servers", required=True, metavar="SERVERS", help="HOST:PORT,HOST:PORT or @FILE")
    ingest.add_argument("--reader", default="", metavar="NAME", help="the reader to use")
    ingest.add_argument("--to", required=True, metavar="FOLDER", help="for the files")
    ingest.add_argument("--format", default="parquet", choices=["parquet", "delta"], help="file format")
    ingest.add_argument("--every", type=int, default=0, metavar="SECONDS", help="keep running, with a batch this often")
    ingest.add_argument(
        "--option", action="append", default=[], type=_setting, metavar="NAME=VALUE", help="an option of the stream"
    )


def _add_compare(compare: argparse.ArgumentParser) -> None:
    compare.add_argument("paths", nargs="*", metavar="PATH", help="the journals, if a period is given")
    for name in ("before", "after"):
        words = "SINCE..UNTIL, or the folder of a report"
        compare.add_argument(f"--{name}", required=True, metavar="PERIOD|FOLDER", help=words)
    compare.add_argument(
        "--to", default="", type=_path, metavar="FOLDER", help="for compare.html and the Parquet table"
    )


def _add_replay(replay: argparse.ArgumentParser) -> None:
    replay.add_argument("--servers", required=True, metavar="SERVERS", help="HOST:PORT,HOST:PORT or @FILE")
    replay.add_argument("--to", default="", metavar="QUEUE", help="the queue to put them on (default: the same)")
    replay.add_argument("--where", default="", metavar="EXPRESSION", help='only these items, such as "size > 100"')
    replay.add_argument(
        "--speed", default="1x", type=_argument_type(parse_speed), metavar="1x|max", help="1x is the original pace"
    )
    replay.add_argument(
        "--rate", default=None, type=_argument_type(parse_rate), metavar="N/s", help="limit for all tasks together"
    )
    replay.add_argument("--expired", action="store_true", help="include expired items")
    replay.add_argument("--dedup-key", action="store_true", help="prefix items with a key and a newline")
    replay.add_argument(
        "--state", default="", type=_path, metavar="FOLDER", help="save progress there; continue from it"
    )
    replay.add_argument(
        "--option", action="append", default=[], type=_setting, metavar="NAME=VALUE", help="an option of the servers"
    )


def _argument_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """The parser for argparse, which shows only the messages of its own errors."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as problem:
            raise argparse.ArgumentTypeError(str(problem)) from problem

    return parsed


def _path(text: str) -> str:
    """A path for output written without Spark, which alone handles URLs."""
    if URL.match(text):
        raise argparse.ArgumentTypeError("must be a path, not a URL")  # which may have a secret in it
    return text


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=VALUE")
    return name, value


def _choice(chosen: argparse.Namespace) -> Any:
    from kestrelspark.jobs.convert import Choice

    return Choice(tuple(chosen.queue), chosen.since, chosen.until, chosen.mode)


def _verify(spark: Any, chosen: argparse.Namespace) -> int:
    from kestrelspark.jobs.verify import verify

    result = verify(spark, chosen.paths, chosen.queue, chosen.state)
    for problem in result.problems:
        print(problem)
    megabytes = result.size_bytes / 1e6
    for path in result.removed:
        _say(f"{path}: removed by its server in the meantime, not read")
    earlier = f"; {result.passed_over} unchanged files skipped" if result.passed_over else ""
    _say(
        f"{result.files} files, {megabytes:,.1f} MB, {result.records:,} records: "
        + (f"{len(result.problems)} problems" if result.problems else "no problems")
        + earlier
    )
    return result.code


def _report(spark: Any, chosen: argparse.Namespace) -> int:
    from kestrelspark.jobs.job_page import job_page
    from kestrelspark.jobs.job_report import job_report, write_job_tables
    from kestrelspark.jobs.page import page
    from kestrelspark.jobs.report import report, write_tables

    found = report(spark, chosen.paths, _choice(chosen), chosen.bucket, chosen.state)
    of_jobs = job_report(spark, chosen.paths, _choice(chosen), chosen.bucket)
    if found is None and of_jobs is None:
        return _fail("no events in these journals, and no jobs", NEGATIVE)
    os.makedirs(chosen.to, exist_ok=True)
    if found is not None:
        write_tables(found, chosen.to)
        _write_page(chosen.to, "report.html", page(found))
    if of_jobs is not None:
        write_job_tables(of_jobs, chosen.to)
        _write_page(chosen.to, "jobs.html", job_page(of_jobs))
    return 0


def _write_page(folder: str, name: str, content: str) -> None:
    target = os.path.join(folder, name)
    with open(target, "w", encoding="utf-8") as file:
        file.write(content)
    print(target)


def _compare(spark: Any, chosen: argparse.Namespace) -> int:
    from kestrelspark.jobs.compare import SHOWN, change_in_words, compare, write_table
    from kestrelspark.jobs.compare_page import compare_page
    from kestrelspark.jobs.convert import Choice
    from kestrelspark.jobs.page import name_of

    found = compare(spark, chosen.paths, Choice(tuple(chosen.queue)), chosen.before, chosen.after)
    if found is None:
        return _fail("no events in either period", NEGATIVE)
    if chosen.to:
        os.makedirs(chosen.to, exist_ok=True)
        write_table(spark, found, chosen.to)
        with open(os.path.join(chosen.to, "compare.html"), "w", encoding="utf-8") as file:
            file.write(compare_page(found))
    changes: list[dict[str, Cell]] = []
    for row in found.rows:
        for name in SHOWN:
            was, is_now = (
                "" if row[f"{name}_{side}"] is None else row[f"{name}_{side}"] for side in ("before", "after")
            )
            words = change_in_words(row, name)
            changes.append({"queue": name_of(row), "figure": name, "before": was, "after": is_now, "change": words})
    write_rows(changes, ["queue", "figure", "before", "after", "change"])
    return 0


def _convert(spark: Any, chosen: argparse.Namespace) -> int:
    from kestrelspark.jobs.convert import convert, convert_new
    from kestrelspark.options import BadOption

    if chosen.state:
        if chosen.overwrite or chosen.since or chosen.until:
            raise BadOption("--state cannot be combined with --overwrite, --since or --until")
        if URL.match(chosen.to):
            raise BadOption("with --state, --to must be a path, not a URL")
        added = convert_new(spark, chosen.paths, chosen.to, chosen.state, _choice(chosen), with_values=chosen.values)
        if added.left_out:
            _say(f"{added.left_out} Kestrel files skipped: convert them without --state")
        _say(f"{added.rows:,} rows added to {chosen.to}")
        return 0
    count = convert(
        spark, chosen.paths, chosen.to, _choice(chosen), with_values=chosen.values, overwrite=chosen.overwrite
    )
    _say(f"{count:,} rows written to {chosen.to}")
    return 0


def _ingest(spark: Any, chosen: argparse.Namespace) -> int:
    from kestrelspark.bar import bar
    from kestrelspark.jobs.ingest import Queues, ingest

    options = {**dict(chosen.option), "subscribe": ",".join(chosen.queues)}
    what = Queues(chosen.servers, chosen.reader, options)
    with bar("ingest") as tell:
        count = ingest(spark, what, chosen.to, chosen.every, chosen.format, tell)
    _say(f"{count:,} items added to {chosen.to}")
    return 0


def _replay(spark: Any, chosen: argparse.Namespace) -> int:
    from kestrelspark.jobs.replay import Replay, replay
    from kestrelspark.options import check_names
    from kestrelspark.rows import Mode
    from kestrelspark.servers import OPTIONS, servers_in

    check_names(dict(chosen.option), OPTIONS, "replay")
    what = Replay(
        servers_in({**dict(chosen.option), "servers": chosen.servers}),
        chosen.to,
        chosen.where,
        Pace(chosen.speed, chosen.rate),
        chosen.state,
        chosen.expired,
        chosen.dedup_key,
        Mode(chosen.mode or "FAILFAST"),
    )
    outcomes = replay(spark, chosen.paths, _choice(chosen), what)
    for one in outcomes:
        if one.problem:
            _say(f"{one.queue}: {one.problem}")
    if outcomes:
        columns = ["server", "queue", "items", "bytes", "expired", "last_id"]
        write_rows([{name: getattr(one, name) for name in columns} for one in outcomes], columns)
    elif chosen.state:
        _say(f"nothing left to put, according to {chosen.state}")
    else:
        _say("no matching items in these journals")
    return max((one.code for one in outcomes), default=NEGATIVE)


JOBS: Final = {
    "verify": _verify,
    "report": _report,
    "convert": _convert,
    "ingest": _ingest,
    "replay": _replay,
    "compare": _compare,
}

if __name__ == "__main__":
    sys.exit(main())
