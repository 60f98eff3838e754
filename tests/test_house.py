"""The house rules no linter knows: who may touch the system, what the documentation must mention, what lies where."""

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

from kestreld import __version__
from kestreld.config.config_file import load
from kestreld.config.settings import SETTINGS
from kestreld.config.users import Right
from kestreld.daemon import ExitCode
from kestreld.files import FileLayer
from kestreld.journal import job_records
from kestreld.journal.job_records import JobType
from kestreld.journal.records import (
    FRAME_BYTES,
    Done,
    Due,
    Key,
    Origin,
    Reason,
    Type,
    Why,
    done_record,
    due_record,
    key_record,
    origin_record,
    put_record,
    sync_record,
)
from kestreld.queues.keys import digest_of
from tests.support import code_map, reference
from tests.support.accounts import quick_hash
from tests.support.daemon import READY, running_daemon
from tests.support.sources import sources
from tests.support.wire import connected

ROOT: Final = Path(__file__).parents[1]
TOP_LEVEL_FILES: Final = frozenset(
    {".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "pyproject.toml"}
)
TOP_LEVEL_FOLDERS: Final = frozenset(
    {".ci", "benchmarks", "completions", "docs", "kestrelctl", "kestreld", "kestrelspark", "packaging", "tests", "tui"}
)
# Module -> the rooms of kestreld that may import it. All others get disk, network, time and chance handed in.
MAY_IMPORT: Final = {
    "asyncio": ("client/async_", "daemon.py", "server/", "library/answer.py"),
    "concurrent": ("server/bus/host_names.py", "server/cpu_worker.py", "library/"),
    "threading": (
        "client/",
        "disk_threads.py",
        "integrations/celery/wire.py",
        "library/",
        "recipes/waiting.py",
        "testing.py",
    ),
    "signal": ("daemon.py",),
    "os": ("daemon.py", "disque_server.py", "files.py", "forks.py", "net.py", "spool_lock.py", "systemd.py"),
    "pathlib": ("daemon.py", "listening.py", "testing.py"),
    "fcntl": ("files.py",),
    "shutil": (),
    "tempfile": (),
    "io": (),
    "mmap": (),
    "socket": ("client/access.py", "integrations/celery/", "net.py", "systemd.py"),
    "select": ("client/access.py", "integrations/celery/wire.py", "net.py", "recipes/servers.py"),
    "selectors": ("server/loop.py",),
    "time": ("clock.py",),
    "datetime": ("integrations/celery/beat.py", "integrations/celery/messages.py"),
    "random": ("client/",),
    "secrets": ("integrations/celery/", "recipes/"),
    "uuid": (),
    "subprocess": ("library/shared_spool.py", "testing.py"),
    "multiprocessing": (),
}
# The last line of defence, where nobody is left to hand an error to; threads, which tell of their death or hand it to
# who waits; an answer, which hands it to who asked, and calls callbacks as any future does; what asks a callback of the
# user's whether it is alive; and what is loaded in programs that do not use it.
MAY_CATCH_ALL: Final = {
    "kestrelctl/shell/endings.py": 1,
    "kestreld/client/keeper_calls.py": 1,
    "kestreld/disk_threads.py": 2,
    "kestreld/integrations/celery/aliases.py": 1,
    "kestreld/library/answer.py": 2,
    "kestreld/library/worker.py": 1,
}

# What the engine's objects hold is set by their own methods. Module -> its classes of that kind.
STATE: Final = {
    "kestreld/journal/journal.py": ("Journal",),
    "kestreld/journal/open_files.py": ("Descriptors",),
    "kestreld/queues/commit.py": ("Committed", "SyncState"),
    "kestreld/queues/family.py": ("Family",),
    "kestreld/queues/memory.py": ("Holding",),
    "kestreld/queues/notes.py": ("Holder", "Notes"),
    "kestreld/queues/reader_progress.py": ("ReaderProgress",),
    "kestreld/queues/queue_puts.py": ("QueuePuts",),
    "kestreld/queues/queue.py": ("Queue",),
    "kestreld/queues/reader.py": ("Reader",),
    "kestreld/queues/stream.py": ("Stream",),
    "kestreld/queues/waiters.py": ("Awaited", "Source"),
    "kestreld/queues/reader_window.py": ("ReaderWindow",),
}
# Names that stand for objects of other classes wherever they have attributes of the same names.
NOT_STATE: Final = {"collection", "counts", "command", "held", "note", "pending_commit", "problem", "template", "wait"}
# Functions that set what is another's all the same, and why.
MAY_SET: Final = {
    ("kestreld/queues/queue_puts.py", "put_at_once"): "a call for each reader would be 2 % of a put of the library",
}

# Modules that import one another, TYPE_CHECKING included: three circles of three at most, each saying why where it is.
CIRCLES: Final = [
    ["kestreld.jobs.job", "kestreld.jobs.job_queue", "kestreld.jobs.waiting"],
    ["kestreld.queues.queue", "kestreld.queues.queue_puts", "kestreld.queues.reader"],
    ["kestreld.server.partial_items", "kestreld.server.session", "kestreld.server.turn"],
]


def imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and top-level name of each imported module."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, (node.module or "").partition(".")[0]


def document(name: str) -> str:
    return (ROOT / name).read_text()


def code_blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", document(name), re.MULTILINE | re.DOTALL)


def names_of_tests(text: str) -> list[str]:
    return re.findall(r"^def (test_\w+)", text, re.MULTILINE)


def in_backticks(name: str) -> set[str]:
    """Words that a document has in code, in line or in blocks."""
    text = document(name)
    code = re.findall(r"`([^`\n]+)`", text) + re.findall(r"^ {4}(\S.*)$", text, re.MULTILINE)
    return {word for piece in code for word in re.findall(r"[A-Za-z_.]+", piece)}


def test_the_system_is_reached_through_its_doors_only() -> None:
    trespasses = [
        f"{path}:{line}: {module}"
        for path, nodes in sources("kestreld")
        for line, module in imports(nodes)
        if module in MAY_IMPORT and not path.removeprefix("kestreld/").startswith(MAY_IMPORT[module] or ("-",))
    ]
    assert trespasses == []


# Who else than the client and the server's side makes sockets or reads from them, and why.
MAY_TOUCH_SOCKETS: Final = {
    "kestreld/integrations/celery/transport.py": "a pair that calls Kombu's event loop back",
    "kestreld/integrations/celery/wire.py": "Kombu's event loop waits on it; connected and parsed by the client",
    "kestreld/systemd.py": "takes over sockets that systemd listens on, and tells it that the server is ready",
    "kestreld/tls.py": "the server's side of TLS",
    "kestrelctl/bench/loop.py": "many connections of the client's at once; their replies go through its parser",
    "kestrelctl/description/completing.py": "shows what has come by 300 ms of a reply that may be half",
    "kestrelctl/doctor/process.py": "binds one to see whether an address is of this machine",
    "tui/web.py": "listens for browsers",
}


def test_only_the_client_speaks_to_servers() -> None:
    makes = {"socket", "create_connection", "create_server", "fromfd", "socketpair", "SocketType"}
    found = set()
    for package in ("kestreld", "kestrelctl", "kestrelspark", "tui"):
        for path, nodes in sources(package):
            for node in nodes:
                is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
                makes_one = is_call and node.func.attr in makes and ast.unparse(node.func.value) == "socket"
                reads_one = isinstance(node, ast.Attribute) and node.attr in {"recv", "recv_into", "makefile"}
                imports_names = isinstance(node, ast.ImportFrom) and node.module in ("socket", "pymemcache")
                parses = isinstance(node, ast.Constant) and node.value in (b"VALUE ", b"STORED\r\n")
                if makes_one or reads_one or imports_names or parses:
                    found.add(path)
            # The recipes speak to any memcached, by a client that is made for it.
            assert "pymemcache" not in {name for _, name in imports(nodes)} or path.startswith("kestreld/recipes/"), (
                path
            )
    rooms = ("kestreld/cache/", "kestreld/client/", "kestreld/server/", "kestreld/queues/", "kestreld/net.py")
    assert {path for path in found if not path.startswith(rooms)} == set(MAY_TOUCH_SOCKETS)


def test_every_room_of_the_server_is_on_a_floor() -> None:
    contracts = tomllib.loads(document("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    (floors,) = [one for one in contracts if one["type"] == "layers" and one["containers"] == ["kestreld"]]
    rooms = {
        path.stem for path in (ROOT / "kestreld").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert floors["exhaustive"], "lint-imports refuses a room that is on none"
    assert rooms - {"__init__"} == set(re.findall(r"\w+", " ".join(floors["layers"])))


def test_only_the_file_layer_opens_files() -> None:
    opening = {
        path
        for path, nodes in sources("kestreld")
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open"
    }
    assert opening <= {"kestreld/files.py"}


def _set(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Receiver (its last name) and name of each attribute that is assigned to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield ast.unparse(node.value).rpartition(".")[2], node.attr


def test_the_state_of_the_engine_is_set_by_its_owners_only() -> None:
    owners: dict[str, set[str]] = {}
    for path, names in STATE.items():
        classes = {node.name: node for node in ast.parse(document(path)).body if isinstance(node, ast.ClassDef)}
        for receiver, attribute in [one for name in names for one in _set(classes[name])]:
            if receiver == "self":
                owners.setdefault(attribute, set()).add(path)
    assert {"put_budget", "sync_ms", "counted_bytes", "behind_items", "retiring", "safe_head"} <= set(owners)
    found: dict[tuple[str, str], str] = {}
    for path, nodes in sources("kestreld"):
        in_journal = path.startswith("kestreld/journal/")  # where `state` and `reader` are what a CHECKPOINT says
        for function in nodes:
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for receiver, name in _set(function):
                    is_other = "journal" not in receiver if in_journal else receiver in {"self", *NOT_STATE}
                    if not is_other and path not in owners.get(name, {path}):
                        found[path, function.name] = f"{receiver}.{name}"
    assert {where: what for where, what in found.items() if where not in MAY_SET} == {}
    assert set(MAY_SET) - set(found) == set()


def _imported(nodes: Iterable[ast.AST], modules: Container[str]) -> Iterator[str]:
    """Those of these modules that one imports."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for name in [f"{node.module}.{alias.name}" for alias in node.names]:
                yield name if name in modules else node.module


def test_no_modules_import_each_other_but_for_the_circles_that_say_why() -> None:
    modules = {
        path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): nodes
        for package in ("kestreld", "kestrelctl", "kestrelspark", "tui")
        for path, nodes in sources(package)
    }
    imported = {module: set(_imported(nodes, modules)) & modules.keys() for module, nodes in modules.items()}
    reached: dict[str, set[str]] = {}
    for module in modules:
        found, left = set[str](), [module]
        while left:
            fresh = imported[left.pop()] - found
            found |= fresh
            left += fresh
        reached[module] = found
    circles = {tuple(sorted(one for one in reached[module] if module in reached[one])) for module in modules}
    assert sorted(map(list, circles - {()})) == CIRCLES
    assert len(CIRCLES) <= 3
    assert all(len(circle) <= 3 for circle in CIRCLES)


def test_nothing_catches_everything() -> None:
    found: dict[str, int] = {}
    for path, nodes in [*sources("kestreld"), *sources("kestrelctl")]:
        for node in nodes:
            if isinstance(node, ast.ExceptHandler):
                caught = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)} if node.type else set()
                if node.type is None or caught & {"Exception", "BaseException"}:
                    found[path] = found.get(path, 0) + 1
    assert found == MAY_CATCH_ALL


def test_every_version_is_the_same_one(tmp_path: Path) -> None:
    project = tomllib.loads(document("pyproject.toml"))["project"]["version"]
    newest = re.search(r"^## (\d\S*)", document("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None
    assert (project, newest[1]) == (__version__, __version__)
    with running_daemon(tmp_path) as daemon, connected(daemon.address) as client:
        client.ask(b"version\r\n", f"VERSION {__version__}\r\n".encode())


def test_protocol_page_names_every_word_of_the_protocol() -> None:
    read = [f"kestreld/server/memcache/{name}.py" for name in ("parser", "commands")]
    nodes = [node for path, nodes in sources("kestreld") if path in read for node in nodes]
    literals = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, bytes)]
    words = {found[0].decode() for literal in literals if (found := re.match(rb"[A-Za-z_]{2,}(?=[ =\r]|$)", literal))}
    assert {"get", "set", "flush_all_expired", "noreply", "peek", "STORED", "CLIENT_ERROR"} <= words
    assert words - in_backticks("docs/protocol.md") == set()


def test_protocol_page_names_every_stat(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, connected(daemon.address) as client:
        client.ask(b"set q 0 0 1\r\n1\r\nget q+child\r\n", b"STORED\r\nEND\r\n")
        client.send(b"stats\r\n")
        answer = client.read_until(b"END\r\n").decode()
    keys = {
        name.removeprefix("queue_q_") for name in re.findall(r"^STAT (\S+)", answer, re.MULTILINE) if "+" not in name
    }
    assert {"uptime", "items", "children"} <= keys
    assert keys - in_backticks("docs/protocol.md") == set()


def test_pages_that_are_made_of_the_code_are_up_to_date() -> None:
    for page in reference.TABLES:
        assert (reference.DOCS / page).read_text() == reference.rendered(page), "make pages"
    assert code_map.MAP.read_text() == code_map.rendered(), "make pages"


def test_every_folder_of_modules_belongs_to_one_product_and_every_module_says_what_it_is() -> None:
    packages = ("kestreld", "kestrelctl", "tui", "kestrelspark")
    modules = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    folders = [folder for folders in code_map.PRODUCTS.values() for folder in folders]
    assert sorted(folders) == sorted({path.parent.relative_to(ROOT).as_posix() for path in modules})
    assert {path.name for path in modules if len(code_map.first_line(path)) > code_map.LINE_MAX} == set()


def test_configuration_page_and_example_name_every_setting() -> None:
    names = {setting.name for setting in SETTINGS}
    assert names - in_backticks("docs/configuration.md") == set()
    example = document("packaging/kestreld.yaml")
    assert [name for name in sorted(names) if f"{name.rpartition('.')[2]}:" not in example] == []


class _FilesWithHashes(FileLayer):
    def read_operators_file(self, path: str) -> bytes:
        return quick_hash("password").encode()


def test_configurations_shown_in_the_documentation_have_no_mistakes() -> None:
    for page in ("docs/cluster.md", "docs/configuration.md", "docs/security.md"):
        blocks = code_blocks(page, "yaml")
        assert blocks
        for block in blocks:
            load(block, page, files=_FilesWithHashes())


def test_the_client_shown_on_the_security_page_logs_in(tmp_path: Path) -> None:
    (program,) = code_blocks("docs/security.md", "python")
    config = (
        f'listen: {{admin: null}}\nusers: {{shop: {{password: "{quick_hash("password")}", rights: {{orders: put}}}}}}\n'
    )
    with running_daemon(tmp_path, config=config) as daemon:
        assert '127.0.0.1", 22133' in program
        there = program.replace('127.0.0.1", 22133', f'127.0.0.1", {daemon.port}')
        subprocess.run([sys.executable, "-c", f"{there}\nclient.close()\nclient.set('orders', b'x')"], check=True)


def test_security_page_names_every_right_and_setting_of_a_user() -> None:
    shown = in_backticks("docs/security.md")
    assert {right.value for right in Right} | {
        "password",
        "password_file",
        "certificate",
        "rights",
        "max_rate",
    } <= shown


def test_configuration_page_names_every_exit_code() -> None:
    rows = {int(code) for code in re.findall(r"^\| (\d+) \|", document("docs/configuration.md"), re.MULTILINE)}
    assert rows == set(ExitCode)


def test_journal_page_shows_the_bytes_that_are_written() -> None:
    put = put_record(1, 1_700_000_000_000, 0, 0, 0, b"hello")
    done = done_record(Done(1, Reason.GOT, 1_700_000_000_250, 1, 5, [(1, 1)]))
    shown = [
        bytes.fromhex(block) for block in code_blocks("docs/journal.md", "") if re.fullmatch(r"[0-9a-f\s]+", block)
    ]
    due = due_record(Due(0, Why.DELAYED, 1, 1_700_000_000_000, 1_700_000_060_000, 5))
    key = key_record(Key(1, 1, 1_700_000_000_000, 1_700_000_360_000, digest_of(b"order-17")))
    origin = origin_record(Origin(1, Reason.MOVED, 3, 1_699_999_000_000, "orders"))
    assert shown == [put + done, due + key + put, origin]


def test_journal_page_names_every_record_and_the_fields_of_those_of_version_2_fill_them() -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z]+) \| (.*) \|$", document("docs/journal.md"), re.MULTILINE)
    assert [(int(number), name) for number, name, _ in rows] == [(int(known), known.name) for known in Type]
    made = {
        "DUE": due_record(Due(0, Why.DELAYED, 1, 0, 0, 0)),
        "KEY": key_record(Key(1, 1, 0, 0, bytes(16))),
        "ORIGIN": origin_record(Origin(1, Reason.MOVED, 0, 0, "")),
    }
    shown = {
        name: sum(int(bits) // 8 for bits in re.findall(r" u(\d+)", fields)) + 16 * ("digest 16" in fields)
        for _, name, fields in rows
        if name in made
    }
    assert shown == {name: len(record) - FRAME_BYTES for name, record in made.items()}


def test_journal_page_names_every_record_of_the_job_log_and_their_fields_fill_them() -> None:
    rows = re.findall(r"^\| ([A-Z]+) (\d+) \| (.*) \|$", document("docs/journal.md"), re.MULTILINE)
    assert [(name, int(number)) for name, number, _ in rows] == [(known.name, int(known)) for known in JobType]
    job = job_records.JobRecord(0, bytes(40), b"", b"", 0, 0)
    made = {
        "JOB": job_records.pack_job(job),
        "CHANGE": job_records.change_record(0, bytes(40), 0, 1, 0, 0),
        "DONE": job_records.done_record(0, [bytes(40)], "acked"),
        "FLUSHED": job_records.flushed_record(0),
        "SYNC": sync_record(0),
        "QUEUED": job_records.queued_record(b"", [bytes(40)]),
        "STOPPED": job_records.stopped_record(0, 0),
        "KEY": job_records.key_record(job_records.JobKey(0, 0, bytes(40), b"")),
        "OWNERS": job_records.owners_record(0, bytes(40), [bytes(40)]),
        "PAUSED": job_records.paused_record(0, b"", 0),
    }
    shown = {
        name: sum(int(bits) // 8 for bits in re.findall(r" u(\d+)", " " + fields)) + 40 * fields.count("id 40")
        for name, _, fields in rows
    }
    assert shown == {name: len(record) - FRAME_BYTES for name, record in made.items()}


def test_every_difference_from_kestrel_on_its_page_has_a_test_and_every_test_a_row() -> None:
    text = document("docs/compatibility.md").partition("## What differs")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| .* \| (.*) \|$", text, re.MULTILINE)
    named = [found[1] for row in rows[1:] if (found := re.fullmatch(r"`(test_\w+)`", row))]
    tests = names_of_tests(document("tests/functional/test_differences.py"))
    assert len(named) == len(rows[1:])
    assert sorted(named) == sorted(tests)


def test_every_difference_from_disque_on_its_page_has_a_test_and_every_test_of_differences_a_row() -> None:
    text = document("docs/compatibility.md").partition("\n## Disque")[2]
    rows = re.findall(r"^\| .* \| (.*) \|$", text, re.MULTILINE)[1:]
    named = [found[1] for row in rows if (found := re.fullmatch(r"`(test_\w+)`", row))]
    folders = (
        "tests/jobs",
        "tests/cluster_nodes",
        "tests/cluster_jobs",
        "tests/kestreld/cluster",
        "tests/kestreld/jobs",
        "tests/kestrelctl",
        "tests/simulation",
        "tests/kestreld/server/disque",
        "tests/faults",
    )
    paths = [path for folder in folders for path in (ROOT / folder).rglob("test_*.py")]
    tests = {name: path.name for path in paths for name in names_of_tests(path.read_text())}
    assert len(named) == len(rows) > 30
    assert [name for name in named if name not in tests] == []
    of_differences = {name for name, path in tests.items() if path == "test_differences_from_disque.py"}
    assert of_differences - set(named) == {"test_retry_from_is_a_setting"}


def test_links_in_the_documentation_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_top_level_holds_what_belongs_there() -> None:
    listing = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs git and a checkout")
    files = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.splitlines()
    assert {file for file in files if "/" not in file} - TOP_LEVEL_FILES == set()
    assert {file.partition("/")[0] for file in files if "/" in file} - TOP_LEVEL_FOLDERS == set()


def test_the_files_that_contributors_are_sent_to_are_there() -> None:
    named = set(
        re.findall(r"`((?:kestreld|kestrelctl|kestrelspark|tui|tests|packaging)/[\w./]+)`", document("CONTRIBUTING.md"))
    )
    assert len(named) > 50
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_first_use_in_the_readme_works_as_written(tmp_path: Path) -> None:
    server, commands = code_blocks("README.md", "sh")
    (program,) = code_blocks("README.md", "python")
    config = tmp_path / "kestreld.yaml"
    config.write_text(f"listen: {{memcache: 127.0.0.1:0, admin: null}}\nqueue_path: {tmp_path}/spool\n")
    # Its .venv may be another than the one these tests run in.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "KESTRELD_CONFIG": str(config), "HOME": str(tmp_path)}

    with subprocess.Popen(
        ["sh", "-euc", server], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        assert process.stderr is not None
        try:
            ready = next(found for line in process.stderr if (found := READY.search(line)))
            environment["KESTRELCTL_SERVER"] = ready[1]
            done = subprocess.run(
                ["sh", "-euc", commands], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, done.stderr
            assert done.stdout.startswith("hello")
            assert "got 1\ngot 2\ngot 3\n" in done.stdout
            assert '127.0.0.1", 22133' in program
            there = program.replace('"127.0.0.1", 22133', f'"127.0.0.1", {ready[1].rpartition(":")[2]}')
            subprocess.run([sys.executable, "-c", there], cwd=tmp_path, env=environment, check=True, timeout=60)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            last_words = process.stderr.read()
        assert last_words.endswith("kestreld: stopped\n")


def test_make_draws_fresh_seeds_and_says_how_to_run_them_again() -> None:
    recipes = (ROOT / "Makefile").read_text()
    assert recipes.count("@$(DRAW_FIRST) && $(BIN)/python -m tests.simulation") == 2
    assert "make simulate" in (ROOT / ".ci" / "run").read_text()
    assert re.search(r"^simulate:.*\n\t.* --first \d+ ", recipes, re.MULTILINE)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "FIRST"))
    }

    def drawn(*arguments: str) -> str:
        command = ["make", "-s", "--eval", "seeds: ; @$(DRAW_FIRST) && echo given $$FIRST", "seeds", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        found = re.fullmatch(r"seeds: fresh seeds .* from (\d+) on; FIRST=\1 repeats them\ngiven \1\n", done.stdout)
        assert found is not None
        return found[1]

    assert drawn("FIRST=77") == "77"
    assert drawn() != drawn()
