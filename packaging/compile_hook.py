"""The compiled build: with KESTRELD_COMPILE=1 in the environment, a build has mypyc compile the hot modules.

The Debian package and `make wheel` set it. Without it a build is pure Python, quick, and needs no compiler. The same
source runs either way. What is compiled is what runs once a command or more often.

With KESTRELD_COMPILE_CACHE=FOLDER, as `make compiled` has it, modules are kept in that folder and used again.
"""

import os
import platform
import sys
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, suppress
from importlib.metadata import version as version_of
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.append(str(Path(__file__).parent))
import kept_builds

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
    "kestreld/queues/sharded.py",
    "kestreld/queues/held.py",
    "kestreld/queues/keys.py",
    "kestreld/queues/waiters.py",
    "kestreld/queues/commit.py",
    "kestreld/queues/notes.py",
    "kestreld/queues/family.py",
    "kestreld/queues/id_ranges.py",
    "kestreld/queues/reader_window.py",
    "kestreld/queues/reader_progress.py",
    "kestreld/queues/reader_due_items.py",
    "kestreld/queues/reader.py",
    "kestreld/queues/stream.py",
    "kestreld/queues/queue_puts.py",
    "kestreld/queues/queue.py",
    "kestreld/queues/leases.py",
    "kestreld/jobs/replicated_jobs.py",
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
    "kestreld/server/memcache/replies.py",
    "kestreld/server/memcache/table_commands.py",
    "kestreld/server/memcache/lease_commands.py",
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
    "kestreld/server/disque/pending_addjob.py",
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


COMPILER_BYTES = 1 << 29  # of memory for each compiler; the largest C file takes less than half of it


def compilers() -> int:
    """How many compilers to run side by side: one for each processor that there is memory for."""
    memory_bytes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):  # of a container, of either version
        with suppress(OSError, ValueError):
            memory_bytes.append(int(Path("/sys/fs/cgroup", limit).read_text()))
    return max(1, min(len(os.sched_getaffinity(0)), min(memory_bytes) // COMPILER_BYTES))


def compile_modules(work: Path, built: Path, note: Callable[[str], None]) -> None:
    """Have mypyc make C of the modules, a file of each, and compile several of them at a time."""
    # Only a build that compiles has these.
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    jobs = compilers()

    class BuildSideBySide(build_ext):
        """setuptools itself compiles the files of one extension one after the other, and nearly all are of one."""

        def build_extensions(self) -> None:
            compile_in_turn = self.compiler.compile

            def compile_side_by_side(sources: list[str], **options: Any) -> list[str]:
                largest_first = sorted(sources, key=os.path.getsize, reverse=True)
                with ThreadPoolExecutor(jobs) as pool:
                    made = pool.map(lambda source: compile_in_turn([source], **options), largest_first)
                    objects = dict(zip(largest_first, made, strict=True))
                return [path for source in sources for path in objects[source]]

            self.compiler.compile = compile_side_by_side
            super().build_extensions()

    # What happens to be installed makes no difference: the types of xxhash would make a put 3 % slower.
    options = ["--config-file=", "--cache-dir=/dev/null", "--ignore-missing-imports", "--no-site-packages"]
    note(f"mypyc makes C of {len(MODULES)} modules: half a minute")
    # Debug information would double the size of the wheel and contain the paths it was built in.
    extensions = mypycify([*options, *MODULES], opt_level="3", debug_level="0", multi_file=True, target_dir=str(work))
    for extension in extensions:
        # Calls within the library go straight to a function, which may be inlined, and not through a table.
        extension.extra_compile_args.append("-fvisibility=hidden")
    note(f"three minutes of work for the C compiler, {jobs} files at a time")
    build = BuildSideBySide(Distribution({"ext_modules": extensions}))
    build.build_lib, build.build_temp, build.parallel = str(built), str(work), jobs
    build.ensure_finalized()
    build.run()


class CompileHook(BuildHookInterface[Any]):
    """Puts the extension modules beside the Python modules they stand for."""

    def _wanted(self) -> bool:
        return os.environ.get("KESTRELD_COMPILE") == "1"

    def dependencies(self) -> list[str]:
        return ["mypy>=1.14", "setuptools", "types-PyYAML"] if self._wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not self._wanted() or version == "editable":
            return
        self.work = TemporaryDirectory(prefix="kestreld-compile-")
        work = Path(self.work.name)
        built = work / "built"

        def build() -> None:
            with chdir(self.root):
                compile_modules(work, built, self.app.display_waiting)

        if folder := os.environ.get("KESTRELD_COMPILE_CACHE"):
            if kept_builds.kept_or_built(Path(folder), self._hash(), built, build):
                self.app.display_info(f"the modules compiled before, of {folder}")
        else:
            build()
        extensions = {str(path.relative_to(built)): str(path) for path in built.rglob("*.so")}
        compiled = {name.partition(".")[0] + ".py" for name in extensions}
        if missing := [module for module in MODULES if module not in compiled]:
            raise RuntimeError(f"mypyc built no extension module for {', '.join(missing)}")
        build_data["force_include"].update({path: name for name, path in extensions.items()})
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def _hash(self) -> str:
        """All of kestreld counts: a compiled module depends on the types of what it imports."""
        root = Path(self.root)
        tools = [(name, version_of(name)) for name in ("mypy", "setuptools")]
        machine = sys.version, sysconfig.get_platform(), sysconfig.get_config_var("EXT_SUFFIX"), platform.libc_ver()
        compiler = [os.environ.get(name) for name in ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS", "LDSHARED")]
        return kept_builds.hash_of(
            root, [*root.glob("kestreld/**/*.py"), Path(__file__)], [*tools, *machine, *compiler]
        )

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._wanted() and version != "editable":
            self.work.cleanup()
