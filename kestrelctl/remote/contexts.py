"""Contexts, which are named servers with credentials in a file, and the choice of servers for a command line."""

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal

from kestrelctl.remote.access import login_of, parse_address
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.client.access import Login

SERVER_DEFAULT: Final = "127.0.0.1:22133"
CACHE_DEFAULT: Final = "127.0.0.1:11211"
JOBS_DEFAULT: Final = "127.0.0.1:7711"
NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
WAY_IN: Final = ("user", "password_file", "tls", "ca", "cert", "key")
_TRUE: Final = ("1", "true", "t", "yes", "y", "on")


@dataclass(frozen=True, slots=True)
class Context:
    """Servers and credentials. Fields are named as in the file; "" and None = not set."""

    servers: tuple[str, ...]
    user: str = ""
    password_file: str = ""
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    admin_port: int | None = None  # of every server; None = as the server reports it
    cache: str = ""  # address of the one cache that goes with them
    jobs: str = ""  # the same of the node of jobs


@dataclass(slots=True)
class Contexts:
    """Contents of the contexts file."""

    selected: str = ""  # "" = none
    by_name: dict[str, Context] = field(default_factory=dict)

    def find(self, name: str) -> Context:
        """The context of that name. Raises Failure."""
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name))
            reason = f"there are {known}" if known else "there are none; use kestrelctl context add"
            raise Failure(ExitCode.NO_INPUT, f"no context {name!r}: {reason}")
        return self.by_name[name]


@dataclass(frozen=True, slots=True)
class Way:
    """The servers and the login that a command uses."""

    servers: tuple[str, ...]
    login: Login
    context: str = ""  # "" = none
    admin_port: int | None = None
    cache: str = ""  # from the context
    jobs: str = ""


def file_path() -> str:
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return f"{folder}/kestrelctl/contexts.yaml"


# Choosing servers


def settle(options: Mapping[str, str | bool]) -> Way:
    """The servers and the login for a command line with these options.

    The login comes from the options, else from the context, else from the environment. A server in the options disables
    the context unless the options name one, too. Raises Failure.
    """
    server = str(options.get("server") or "")
    name = str(options.get("context") or ("" if server else os.environ.get("KESTRELCTL_CONTEXT", "")))
    from_environment = os.environ.get("KESTRELCTL_SERVER", "")
    context = None
    if name or not (server or from_environment):
        contexts = load()
        name = name or contexts.selected
        context = contexts.find(name) if name else None
    way_in: dict[str, Any] = {o: options.get(o) or getattr(context, o, "") or _from_environment(o) for o in WAY_IN}
    login = login_of(**way_in)
    if context is not None:
        servers = (server,) if server else context.servers
        return Way(servers, login, name, context.admin_port, context.cache, context.jobs)
    if server:
        return Way((server,), login)
    return Way((from_environment or SERVER_DEFAULT,), login)


def settle_beside(options: Mapping[str, str | bool], kind: Literal["cache", "jobs"], default: str) -> Way:
    """The cache or the node of jobs: -s, else the context's, else $KESTRELCTL_CACHE or _JOBS, else the default.

    The login is chosen as in `settle`. Raises Failure for a context that names no such server.
    """
    from_environment = os.environ.get(f"KESTRELCTL_{kind.upper()}", "")
    named = options.get("server") or options.get("context") or os.environ.get("KESTRELCTL_CONTEXT")
    way = settle(options if named or not from_environment else {**options, "server": from_environment})
    if options.get("server") or not way.context:
        return way if named or from_environment else Way((default,), way.login)
    address = way.cache if kind == "cache" else way.jobs
    if not address:
        words = f"context {way.context} has no {kind}: use -s HOST:PORT, or context add --{kind} HOST:PORT --replace"
        raise Failure(ExitCode.USAGE, words)
    return Way((address,), way.login, way.context)


def _from_environment(option: str) -> str | bool:
    if option == "password_file":
        return ""
    value = os.environ.get(f"KESTRELCTL_{option.upper()}", "")
    return value.lower() in _TRUE if option == "tls" else value


# The file. kestrelctl writes JSON, which is YAML and read ten times as fast.


def load() -> Contexts:
    """Read the contexts; none if there is no file. Raises Failure if it cannot be read."""
    path = file_path()
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return Contexts()
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(ExitCode.CONFIG, f"{path}: cannot be read: {error}") from error
    try:
        return _contexts(_parse(text))
    except ValueError as problem:
        raise Failure(ExitCode.CONFIG, f"{path}: {problem}") from problem


def _parse(text: str) -> Any:
    """Parse JSON or YAML. Raises ValueError."""
    with suppress(ValueError):
        return json.loads(text)
    import yaml

    try:
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _contexts(content: Any) -> Contexts:
    """Contexts from the parsed file. Raises ValueError."""
    top = _mapping(content if content is not None else {}, "the file", {"selected", "contexts"})
    found = Contexts(str(top.get("selected") or ""))
    for name, content in _mapping(top.get("contexts") or {}, "contexts", None).items():
        check_name(name)
        found.by_name[name] = _context(content, f"contexts.{name}")
    if found.selected and found.selected not in found.by_name:
        raise ValueError(f"selected: no context {found.selected!r}")
    return found


def _context(content: Any, where: str) -> Context:
    named = _mapping(content, where, {each.name for each in fields(Context)})
    servers = named.pop("servers", None)
    if not isinstance(servers, list) or not servers or not all(isinstance(server, str) for server in servers):
        raise ValueError(f"{where}.servers: expected a list of HOST:PORT")
    wanted: dict[str, type] = {"tls": bool, "admin_port": int}
    for key, value in named.items():
        kind = wanted.get(key, str)
        if type(value) is not kind:
            raise ValueError(f"{where}.{key}: expected {'true or false' if kind is bool else kind.__name__}")
    return checked(Context(tuple(servers), **named))


def _mapping(content: Any, where: str, known: set[str] | None) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError(f"{where}: expected keys and values")
    for key in content:
        if known is not None and key not in known:
            raise ValueError(f"{where}: unknown key {key!r}; known are {', '.join(sorted(known))}")
    return dict(content)


def checked(context: Context) -> Context:
    """Return the context. Raises ValueError for invalid addresses and ports."""
    for server in (*context.servers, *filter(None, (context.cache, context.jobs))):
        try:
            parse_address(server)
        except Failure as problem:
            raise ValueError(problem.words) from problem
    if context.admin_port is not None and not 0 < context.admin_port < 65536:
        raise ValueError(f"{context.admin_port} is not a port")
    return context


def check_name(name: object) -> None:
    """Raise ValueError for an invalid name."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is not a context name: use letters, digits, _, . and -, starting with a letter")


def save(contexts: Contexts) -> None:
    """Replace the file. Raises Failure."""
    path = file_path()
    content = {
        name: {key: value for key, value in asdict(context).items() if value not in ("", None, False)}
        for name, context in sorted(contexts.by_name.items())
    }
    text = json.dumps({"selected": contexts.selected, "contexts": content}, indent=2, ensure_ascii=False) + "\n"
    beside = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(beside, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(beside, path)
    except OSError as error:
        raise Failure(ExitCode.IO, f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error
