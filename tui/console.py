"""Start of the console from the options of `kestrelctl top`. Textual is not imported before this."""

import os
from collections.abc import Sequence

from kestrelctl.shell.exit_codes import ExitCode, Failure, Interrupted
from kestreld.client.access import Login
from tui.app import Console
from tui.plain import ViewOptions
from tui.polling import pollers
from tui.preferences import load_columns
from tui.recording import load, open_recorder
from tui.session import Session
from tui.themes import NAMES


def run_console(
    addresses: Sequence[str],
    login: Login,
    options: ViewOptions,
    *,
    interval_ms: int,
    timeout_ms: int,
    is_read_only: bool,
    theme: str | None,
    record: str | None,
    replay: str | None,
) -> None:
    """Run until the user quits. `record` and `replay` are files. Raises Failure before anything is drawn."""
    if theme is not None and theme not in NAMES:
        raise Failure(ExitCode.USAGE, f"no such theme: {theme!r}; use one of {', '.join(NAMES)}")
    player = load(replay) if replay is not None else None
    recorder = open_recorder(record, interval_ms) if record is not None else None
    session = Session(
        addresses,
        interval_ms=player.interval_ms if player is not None else interval_ms,
        timeout_ms=timeout_ms,
        login=login,
        is_read_only=is_read_only,
        recorder=recorder,
        player=player,
    )
    console = Console(
        [] if player is not None else pollers(addresses, timeout_ms, interval_ms, login),
        options,
        session,
        theme_name=theme or NAMES[0],
        columns=load_columns(),
        keeps_columns=not (
            is_read_only and "TEXTUAL_DRIVER" in os.environ
        ),  # not from a browser that may change nothing
    )
    console.run()
    if console.login_refusal is not None:
        raise console.login_refusal
    if console.stopped_by is not None:
        raise Interrupted(console.stopped_by)
