"""Conversion of verbs for typer: option groups, each a named tuple, become single options."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_args, get_origin

import typer

from kestrelctl.commands.declared import Declared, groups_of, regrouped


def ungrouped(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb as typer takes it: the fields of its option groups are options after the verb's own."""
    groups = groups_of(verb)
    own = [each for each in signature(verb).parameters.values() if each.name not in groups]
    theirs = [each for group in groups.values() for each in signature(group).parameters.values()]

    @wraps(verb)
    def taking_all(**values: Any) -> Any:
        return verb(**regrouped(verb, values))

    options = [_for_typer(each).replace(kind=Parameter.KEYWORD_ONLY) for each in (*own, *theirs)]
    taking_all.__signature__ = Signature(options)  # type: ignore[attr-defined]
    return taking_all


def _for_typer(parameter: Parameter) -> Parameter:
    if get_origin(parameter.annotation) is not Annotated:
        return parameter
    kind, declared, *_ = get_args(parameter.annotation)
    if not isinstance(declared, Declared):
        return parameter
    made = (typer.Option if declared.is_option else typer.Argument)(*declared.words, **declared.settings)
    return parameter.replace(annotation=Annotated[kind, made])
