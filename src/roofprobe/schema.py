"""JSON schema from dataclasses, so that the record's fields are written down once; strict JSON."""

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

_JSON_TYPES: Mapping[Any, str] = {
    str: "string",
    float: "number",
    int: "integer",
    bool: "boolean",
    type(None): "null",
}


def json_schema(kind: Any) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a type annotation.

    Args:
        kind: A dataclass, a scalar, a union, a tuple or a mapping with string keys.
    """
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = dataclasses.fields(kind)
        return {
            "type": "object",
            "properties": {f.name: json_schema(hints[f.name]) for f in fields},
            "required": [f.name for f in fields if _is_required(f)],
            "additionalProperties": False,
        }
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        arms = [json_schema(argument) for argument in arguments]
        if all(set(arm) == {"type"} for arm in arms):
            return {"type": [arm["type"] for arm in arms]}
        return {"anyOf": arms}
    if origin is tuple:
        if arguments[-1] is ...:
            return {"type": "array", "items": json_schema(arguments[0])}
        size = len(arguments)
        items = json_schema(arguments[0])
        return {"type": "array", "items": items, "minItems": size, "maxItems": size}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": json_schema(arguments[1])}
    return {"type": _JSON_TYPES[kind]}


def strict_json(text: str) -> Any:
    """Parses JSON whose numbers are finite and whose texts are Unicode, which Python's may not be.

    Raises:
        ValueError: it is something else; the message says what.
    """
    try:
        body = json.loads(text, parse_constant=_number, parse_float=_number, parse_int=_integer)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if r"\ud" in text.lower():
        try:
            json.dumps(body, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a text holds half of a surrogate pair") from None
    return body


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is no finite number")
    return value


def _integer(text: str) -> int:
    _number(text)  # also bounds the digits, whose conversion takes quadratic time
    return int(text)


def _is_required(entry: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return entry.default is missing and entry.default_factory is missing
