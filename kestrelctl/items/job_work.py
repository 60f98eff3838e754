"""Jobs processed by a shell command: acknowledged if it succeeds, given back if it fails."""

from contextlib import suppress
from typing import TYPE_CHECKING

from kestrelctl.items.delivering import how_it_ended, run_command
from kestrelctl.shell.exit_codes import ExitCode, Failure, Interrupted
from kestreld.client import job_commands as commands
from kestreld.client.job_nodes import beat_after_s

if TYPE_CHECKING:
    from kestrelctl.remote.jobs import JobsClient
    from kestreld.client.job_commands import Job


def work_on(client: "JobsClient", job: "Job", command: str) -> None:
    """Run `command` with the job's body, while WORKING keeps the job. Raises Failure if it fails."""

    def keep() -> float | None:
        try:
            return beat_after_s(client.ask_on_any(commands.working(job)))
        except Failure:  # half of its TTL is over; any other failure shows when the job is acknowledged
            return None

    try:
        status = run_command(command, job.body, keep, keep())
    except Interrupted:
        with suppress(Failure):
            client.ask_on_any(commands.enqueue([job]))
        raise
    if status != 0:
        client.ask_on_any(commands.nack([job]))
        raise Failure(ExitCode.COMMAND_FAILED, f"{how_it_ended(status)}; its job is given back")
    if not client.ask_on_any(commands.ack([job])):
        raise Failure(
            ExitCode.COMMAND_FAILED,
            "the command ended, but its job no longer exists: its TTL expired, or it was acknowledged",
        )
