"""Options that belong together: a verb takes a named tuple of them as one parameter."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any


def ungrouped(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb as typer takes it: the fields of its groups are options, behind the verb's own."""
    parameters = signature(verb).parameters.values()
    groups: dict[str, Any] = {each.name: each.annotation for each in parameters if hasattr(each.annotation, "_fields")}
    if not groups:
        return verb
    own = [each for each in parameters if each.name not in groups]
    theirs = [each for group in groups.values() for each in signature(group).parameters.values()]

    @wraps(verb)
    def taking_all(**values: Any) -> Any:
        for name, group in groups.items():
            values[name] = group(*[values.pop(field) for field in group._fields])
        return verb(**values)

    options = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in (*own, *theirs)]
    taking_all.__signature__ = Signature(options)  # type: ignore[attr-defined]
    return taking_all
