"""`kestrelctl context add, select, show, ls, rm`: named servers with credentials."""

import os
from dataclasses import asdict
from typing import Annotated, Final

from kestrelctl.commands.declared import BadValue, argument, option
from kestrelctl.commands.options import Output, way_to
from kestrelctl.remote.access import password_file_of
from kestrelctl.remote.contexts import WAY_IN, Context, check_name, checked, load, save
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import remark
from kestreld.client.blocks import Cell

COLUMNS: Final = ["context", "selected", "servers", "user", "tls", "admin_port"]
ContextArgument = Annotated[str, argument(metavar="CONTEXT", help="Its name.", show_default=False)]


def context_add(
    name: Annotated[str, argument(metavar="NAME", help="Its name.", show_default=False)],
    servers: Annotated[
        list[str], argument(metavar="HOST:PORT|unix:PATH", help="One server or several.", show_default=False)
    ],
    user: Annotated[str, option(metavar="NAME", help="Log in as this user.")] = "",
    password_file: Annotated[str, option(metavar="FILE", help="Its first line is the password.")] = "",
    tls: Annotated[bool, option("--tls", help="Connect with TLS.")] = False,
    ca: Annotated[str, option(metavar="FILE", help="TLS: CA certificates to trust (PEM).")] = "",
    cert: Annotated[str, option(metavar="FILE", help="TLS: client certificate (PEM).")] = "",
    key: Annotated[str, option(metavar="FILE", help="TLS: key of the client certificate, if in another file.")] = "",
    admin_port: Annotated[
        int | None,
        option(metavar="PORT", help="The servers' admin port, if it differs from the one they report."),
    ] = None,
    cache: Annotated[
        str, option(metavar="HOST:PORT|unix:PATH", help="The cache of `kestrelctl cache`, if there is one.")
    ] = "",
    jobs: Annotated[
        str, option(metavar="HOST:PORT|unix:PATH", help="The node of `kestrelctl jobs`, if there is one.")
    ] = "",
    select: Annotated[bool, option("--select", help="Select it as well.")] = False,
    replace: Annotated[bool, option("--replace", help="Overwrite an existing context of this name.")] = False,
) -> None:
    """Name a server, or several that are used as one. The password itself is not stored.

    Exit 73 when a context of that name already exists.
    """
    files = {"password_file": password_file, "ca": ca, "cert": cert, "key": key}
    ways = {option: os.path.abspath(os.path.expanduser(path)) if path else "" for option, path in files.items()}
    try:
        check_name(name)
        made = checked(
            Context(tuple(dict.fromkeys(servers)), user, tls=tls, admin_port=admin_port, cache=cache, jobs=jobs, **ways)
        )
    except ValueError as problem:
        raise BadValue(str(problem)) from problem
    contexts = load()
    if name in contexts.by_name and not replace:
        raise Failure(ExitCode.CANNOT_CREATE, f"context {name} already exists; use --replace to overwrite")
    contexts.by_name[name] = made
    if select:
        contexts.selected = name
    save(contexts)
    remark(f"context {name}: {', '.join(made.servers)}")


def context_select(
    name: Annotated[
        str | None, argument(metavar="CONTEXT", help="The context; leave out with --none.", show_default=False)
    ] = None,
    none: Annotated[bool, option("--none", help="Select none: commands go to the default server.")] = False,
) -> None:
    """Choose the context of commands that name neither a server nor a context.

    Exit 66 when there is none of that name.
    """
    if (name is not None) == none:
        raise BadValue("give either CONTEXT or --none")
    contexts = load()
    if name is not None:
        contexts.find(name)
    contexts.selected = name or ""
    save(contexts)


def context_show(
    output: Output,
    name: Annotated[
        str | None,
        argument(metavar="CONTEXT", help="The context (default: the one in effect).", show_default=False),
    ] = None,
) -> None:
    """Print a context; without a name, the servers and credentials in effect.

    Exit 66 when there is none of that name.
    """
    if name is not None:
        fields = asdict(load().find(name))
    else:
        way = way_to("")
        name = way.context
        fields = {"servers": way.servers, "admin_port": way.admin_port, "cache": way.cache, "jobs": way.jobs}
        fields |= {option: getattr(way.login, option) for option in WAY_IN if option != "password_file"}
        fields["password_file"] = password_file_of(way.login)
    record: dict[str, Cell] = {"context": name, "servers": ",".join(fields.pop("servers"))}
    record |= {key: _cell(value) for key, value in fields.items() if value not in ("", None, False)}
    output.write_record(record)


def context_ls(output: Output) -> None:
    """Print a row for each context. The selected one has a star."""
    contexts = load()
    rows: list[dict[str, Cell]] = [
        {
            "context": name,
            "selected": "*" if name == contexts.selected else "",
            "servers": ",".join(one.servers),
            "user": one.user,
            "tls": _cell(one.tls),
            "admin_port": one.admin_port or "",
        }
        for name, one in sorted(contexts.by_name.items())
    ]
    output.write_rows(rows, COLUMNS)


def context_rm(name: ContextArgument) -> None:
    """Delete a context. Its servers are not affected.

    Exit 66 when there is none of that name.
    """
    contexts = load()
    contexts.find(name)
    del contexts.by_name[name]
    if contexts.selected == name:
        contexts.selected = ""
    save(contexts)


def _cell(value: object) -> Cell:
    return ("yes" if value else "") if isinstance(value, bool) else value if isinstance(value, int) else str(value)
