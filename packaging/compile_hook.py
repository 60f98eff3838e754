"""The compiled build: with KESTRELD_COMPILE=1 in the environment, a build has mypyc compile the hot modules.

The Debian package and `make wheel` set it. Without it a build is pure Python, quick, and needs no compiler. The same
source runs either way. What is compiled is what runs once a command or more often.
"""

import os
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULES = [
    "kestreld/cache/entries.py",
    "kestreld/cache/counts.py",
    "kestreld/cache/parts.py",
    "kestreld/cache/dictionary.py",
    "kestreld/journal/records.py",
    "kestreld/journal/open_files.py",
    "kestreld/journal/segment.py",
    "kestreld/journal/journal.py",
    "kestreld/journal/job_records.py",
    "kestreld/journal/job_segments.py",
    "kestreld/queues/agenda.py",
    "kestreld/queues/item.py",
    "kestreld/queues/memory.py",
    "kestreld/queues/parted.py",
    "kestreld/queues/held.py",
    "kestreld/queues/keys.py",
    "kestreld/queues/waiters.py",
    "kestreld/queues/commit.py",
    "kestreld/queues/notes.py",
    "kestreld/queues/family.py",
    "kestreld/queues/id_ranges.py",
    "kestreld/queues/window.py",
    "kestreld/queues/progress.py",
    "kestreld/queues/scheduling.py",
    "kestreld/queues/reader.py",
    "kestreld/queues/stream.py",
    "kestreld/queues/putting.py",
    "kestreld/queues/queue.py",
    "kestreld/queues/leases.py",
    "kestreld/jobs/copied_jobs.py",
    "kestreld/jobs/job.py",
    "kestreld/jobs/job_id.py",
    "kestreld/jobs/job_log.py",
    "kestreld/jobs/job_queue.py",
    "kestreld/jobs/jobs.py",
    "kestreld/jobs/levels.py",
    "kestreld/jobs/log.py",
    "kestreld/jobs/maintenance.py",
    "kestreld/jobs/store.py",
    "kestreld/jobs/table.py",
    "kestreld/jobs/timers.py",
    "kestreld/jobs/waiting.py",
    "kestreld/cluster/client_keys.py",
    "kestreld/cluster/federating.py",
    "kestreld/cluster/job_watches.py",
    "kestreld/cluster/replicating.py",
    "kestreld/library/item.py",
    "kestreld/library/reading.py",
    "kestreld/server/state.py",
    "kestreld/server/command_handler.py",
    "kestreld/server/memcache/commands.py",
    "kestreld/server/memcache/parser.py",
    "kestreld/server/memcache/handler.py",
    "kestreld/server/cache/commands.py",
    "kestreld/server/cache/numbers.py",
    "kestreld/server/cache/slab_classes.py",
    "kestreld/server/cache/flags.py",
    "kestreld/server/cache/counting.py",
    "kestreld/server/cache/storing.py",
    "kestreld/server/cache/meta.py",
    "kestreld/server/cache/parser.py",
    "kestreld/server/cache/handler.py",
    "kestreld/server/cache/tidying.py",
    "kestreld/server/disque/adding.py",
    "kestreld/server/disque/parser.py",
    "kestreld/server/disque/client.py",
    "kestreld/server/disque/commands.py",
    "kestreld/server/disque/node.py",
    "kestreld/server/disque/replies.py",
    "kestreld/server/disque/handler.py",
    "kestreld/server/disque/id_commands.py",
    "kestreld/server/disque/job_commands.py",
    "kestreld/server/session.py",
    "kestreld/server/turn.py",
]


class CompileHook(BuildHookInterface[Any]):
    """Puts the extension modules beside the Python modules they stand for."""

    def _wanted(self) -> bool:
        return os.environ.get("KESTRELD_COMPILE") == "1"

    def dependencies(self) -> list[str]:
        return ["mypy>=1.14", "setuptools", "types-PyYAML"] if self._wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not self._wanted() or version == "editable":
            return
        # Only a build that compiles has these.
        from mypyc.build import mypycify
        from setuptools import Distribution

        self.work = TemporaryDirectory(prefix="kestreld-compile-")
        built = Path(self.work.name) / "built"
        # What happens to be installed makes no difference: the types of xxhash would make a put 3 % slower.
        options = ["--config-file=", "--cache-dir=/dev/null", "--ignore-missing-imports", "--no-site-packages"]
        with chdir(self.root):
            # Debug information would double the size of the wheel and contain the paths it was built in.
            modules = mypycify([*options, *MODULES], opt_level="3", debug_level="0", target_dir=self.work.name)
            build = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
            build.build_lib, build.build_temp = str(built), self.work.name
            build.ensure_finalized()
            build.run()
        extensions = {str(path.relative_to(built)): str(path) for path in built.rglob("*.so")}
        compiled = {name.partition(".")[0] + ".py" for name in extensions}
        if missing := [module for module in MODULES if module not in compiled]:
            raise RuntimeError(f"mypyc built no extension module for {', '.join(missing)}")
        build_data["force_include"].update({path: name for name, path in extensions.items()})
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._wanted() and version != "editable":
            self.work.cleanup()
