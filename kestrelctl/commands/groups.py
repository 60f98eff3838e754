"""Conversion of verbs for typer: option groups, each a named tuple, become single options."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_args

import typer

from kestrelctl.commands.declared import BadValue, groups_of


def for_typer(verb: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does nothing, declared as the verb: the fields of its option groups are options after its own."""
    groups = groups_of(verb)
    own = [each for each in signature(verb).parameters.values() if each.name not in groups]
    theirs = [each for group in groups.values() for each in signature(group).parameters.values()]

    @wraps(verb)
    def taking_all(**_: Any) -> None:
        pass

    options = [_for_typer(each).replace(kind=Parameter.KEYWORD_ONLY) for each in (*own, *theirs)]
    taking_all.__signature__ = Signature(options)  # type: ignore[attr-defined]
    return taking_all


def _for_typer(parameter: Parameter) -> Parameter:
    kind, declared = get_args(parameter.annotation)
    told = {key: _told(declared.settings[key]) for key in ("parser", "callback") if key in declared.settings}
    make = typer.Option if declared.is_option else typer.Argument
    return parameter.replace(annotation=Annotated[kind, make(*declared.words, **declared.settings | told)])


def _told(function: Callable[..., Any]) -> Callable[..., Any]:
    """The parser or callback, with the exception of typer for a bad value."""

    @wraps(function)
    def telling(*values: Any, **named: Any) -> Any:  # typer gives a callback its value by name
        try:
            return function(*values, **named)
        except BadValue as error:
            raise typer.BadParameter(str(error)) from error

    return telling
