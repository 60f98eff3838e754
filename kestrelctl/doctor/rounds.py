"""All checks in order: the server's, then those of its machine if that is this one."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kestrelctl.doctor import machine, server
from kestrelctl.doctor.process import Process, find_process, is_local
from kestrelctl.doctor.results import CheckResult, critical, unknown, warning
from kestrelctl.shell.exit_codes import Failure
from kestreld.client.access import Login
from kestreld.config.config import Config
from kestreld.config.config_file import find_config_path, load_file
from kestreld.errors import ConfigError
from kestreld.files import FileLayer

if TYPE_CHECKING:
    from kestrelctl.remote.client import KestrelClient


class Round:
    """One run of all checks. `config` and `spool` are of the command line; None = as the server's process has them."""

    def __init__(
        self, client: "KestrelClient", address: str, login: Login, config: str | None, spool: str | None
    ) -> None:
        self._client = client
        self._address = address
        self._login = login
        self._config = config
        self._spool = spool
        self.unreachable: Failure | None = None

    def results(self) -> Iterator[CheckResult]:
        process = find_process(self._address) if is_local(self._address) else None
        config: Config | None = None
        mistakes: CheckResult | None = None
        if self._config is not None or process is not None:
            try:
                config = self._load(process)
            except ConfigError as error:
                advice = "correct it: reloads and the next start fail"
                mistakes = critical("config", str(error.problems[0]), advice)
        try:
            yield from server.ask(self._client, config)
        except Failure as failure:
            self.unreachable = failure
            yield critical("server", failure.words, "is it running? see its log")
        if mistakes is not None:
            yield mistakes
        elif config is None:
            yield unknown("config", "the server's configuration file is not known", "use --config FILE")
        if config is not None:
            yield server.admin(config.admin, process.admin if process is not None else None, self._login)
        yield from self._machine(process, config)

    def _load(self, process: Process | None) -> Config:
        """Load the configuration as the server would now. Raises ConfigError."""
        files = FileLayer()
        told = self._config if self._config is not None else process.config if process is not None else None
        environment = process.environment if process is not None else dict(os.environ)
        overrides = process.overrides if process is not None else ()
        return load_file(files, find_config_path(files, told, environment), overrides)

    def _machine(self, process: Process | None, config: Config | None) -> Iterator[CheckResult]:
        spool = self._spool or (process.spool if process is not None else None)
        if spool is None and config is not None:
            spool = config.queue_path
        if process is not None:
            yield machine.descriptors(process)
        else:
            words = "the server's process is not visible from here"
            yield unknown("descriptors", words, f"on its machine, {machine.AS_ROOT}")
        yield machine.synchronisation()
        if config is not None and process is not None and process.spool is not None and self._spool is None:
            wanted = os.path.realpath(config.queue_path)
            if wanted != os.path.realpath(process.spool):
                words = f"the server holds {process.spool}, queue_path is {config.queue_path}"
                yield warning(
                    "spool", words, "the next start uses the other one: correct queue_path if that is not intended"
                )
        if spool is None:
            yield unknown("spool", "the spool folder is not known", "use --spool DIR")
            return
        yield from machine.spool(spool, process.account if process is not None else None)
        if config is not None and config.archive_path is not None and os.path.isdir(config.archive_path):
            yield machine.space("archive space", config.archive_path)
