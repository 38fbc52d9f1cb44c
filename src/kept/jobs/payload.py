"""A task's arguments and results as JSON: checked against the signature at the door and at the run. Pure."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_type_hints

import msgspec

from kept.errors import Refused

MOST_DEPTH = 64
MOST_HEADERS = 16_384
MOST_KEY = 512
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]*")
_TOO_DEEP = f"is nested deeper than {MOST_DEPTH} levels"
_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")

T = TypeVar("T")


class Signature:
    """The parameters of a handler after its Context: binds, encodes, and reads back."""

    def __init__(self, handler: Callable[..., object], *, task: str, takes_context: bool) -> None:
        self.task = task
        given = list(inspect.signature(handler).parameters.values())
        parameters = given[1:] if takes_context else given
        _check_named(parameters, task)
        self._signature = inspect.Signature(parameters)
        hints = _hints(handler, task)
        extra = next((p for p in parameters if p.kind is p.VAR_KEYWORD), None)
        named = [p for p in parameters if p is not extra]
        self._decoder = _decoder(_arguments(named, hints, task, closed=extra is None), task)
        self._extra = None if extra is None else extra.name
        self._extra_decoder = _decoder(hints.get(extra.name, Any), task) if extra else None
        self._names = frozenset(p.name for p in named)
        self._places = [p.name for p in named if p.kind is p.POSITIONAL_OR_KEYWORD]
        self._required = {p.name for p in named if p.default is p.empty}
        self._what = f"task {task!r}"
        self._has_defaults = any(p.default is not p.empty for p in named)
        self._taken = given[0].name if takes_context else None
        self.result_type: Any = hints.get("return", Any)

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object], *, limit: int) -> str:
        """The payload of a call, such that a worker will be able to read it, or :class:`Refused`."""
        arguments = self._bind(args, kwargs)
        if self._extra is not None:
            arguments |= arguments.pop(self._extra, {})
            if self._taken in arguments:
                message = f"task {self.task!r}: argument {self._taken!r} has the name of the Context"
                raise Refused(message, field=self._taken)
        try:
            text = encode(arguments, what=self._what, limit=limit)
        except Refused:
            self._blame(arguments, limit)
            raise
        self._check(text)
        return text

    def _bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, Any]:
        """Arguments by name. The plain case by hand, ten times as fast; what is odd about the others Python knows."""
        arguments: dict[str, Any] = dict(zip(self._places, args))  # noqa: B905  # saying it costs half as much again
        if not kwargs and len(args) == len(self._places) == len(self._names):
            return arguments
        arguments.update(kwargs)
        named = len(args) <= len(self._places) and len(arguments) == len(args) + len(kwargs)
        if named and self._required <= arguments.keys() <= self._names:
            return arguments
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise Refused(f"task {self.task!r}: {error}") from None

    def decode(self, payload: str) -> dict[str, Any]:
        """Keyword arguments for the handler. Absent ones are left to the handler's own defaults."""
        try:
            found = msgspec.structs.asdict(self._decoder.decode(payload))
            if self._has_defaults:
                found = {name: value for name, value in found.items() if value is not msgspec.UNSET}
            return found if self._extra_decoder is None else found | self._read_extra(payload)
        except Exception as error:  # noqa: BLE001  # a type's own validation may raise anything
            raise self._misfit(error) from None

    def _check(self, payload: str) -> None:
        """:meth:`decode`, for nobody to use: refuses what a worker could not read."""
        try:
            self._decoder.decode(payload)
            if self._extra_decoder is not None:
                self._read_extra(payload)
        except Exception as error:  # noqa: BLE001  # as above
            raise self._misfit(error) from None

    def _misfit(self, error: Exception) -> Refused:
        kind = "" if isinstance(error, msgspec.MsgspecError) else f"{type(error).__name__}: "
        return Refused(f"task {self.task!r}: the arguments do not fit: {kind}{error}")

    def _read_extra(self, payload: str) -> dict[str, Any]:
        assert self._extra_decoder is not None
        read: dict[str, Any] = {}
        for name, raw in _RAW.decode(payload).items():
            if name in self._names:
                continue
            try:
                read[name] = self._extra_decoder.decode(raw)
            except msgspec.ValidationError as error:
                raise msgspec.ValidationError(f"{error} - in argument `{name}`") from None
        return read

    def _blame(self, arguments: Mapping[str, object], limit: int) -> None:
        """Refuse the first argument that cannot be written by itself, naming it."""
        for name, value in arguments.items():
            encode(value, what=f"task {self.task!r}: argument {name!r}", limit=limit, field=name)


def encode(value: object, *, what: str, limit: int, field: str | None = None) -> str:
    """*value* as canonical JSON that PostgreSQL can store and any worker can read, or :class:`Refused`."""
    data, problem = b"", None
    try:
        data = _write(value)
        problem = _problem(value, data, limit)
    except UnicodeEncodeError:
        problem = "a string holds a lone surrogate, which is not text"
    except RecursionError:
        problem = _TOO_DEEP
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        problem = f"cannot be written as JSON: {error}"
    except Exception as error:  # noqa: BLE001  # a value's own way of writing itself may raise anything
        problem = f"cannot be written as JSON: {type(error).__name__}: {error}"
    if problem is not None:
        raise Refused(f"{what}: {problem}", field=field)
    return data.decode()


def _write(value: object) -> bytes:
    try:
        return _ENCODER.encode(value)
    except TypeError:  # dicts with keys other than strings cannot be sorted; as strings they can
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_write_foreign)
        return _ENCODER.encode(plain)


def _problem(value: object, data: bytes, limit: int) -> str | None:
    """Why *data* cannot be stored. A costly look is taken only if a cheap one says that it may pay."""
    if len(data) > limit:
        return f"{len(data)} bytes exceed the limit of {limit}; store the data elsewhere and pass a reference"
    if b"\\" in data and b"\\u0000" in data and _NUL.search(data):
        return "a string holds a NUL character, which PostgreSQL cannot store"
    if len(data) > 2 * MOST_DEPTH and data.count(b"[") + data.count(b"{") > MOST_DEPTH and _is_too_deep(data):
        return _TOO_DEEP
    if b"null" in data and _has_nonfinite(msgspec.to_builtins(value, enc_hook=_write_foreign)):
        return "NaN and Infinity are not JSON"
    return None


def encode_result(value: object, *, limit: int) -> str | None:
    """A handler's return value; a plain None costs nothing."""
    return None if value is None else encode(value, what="the result", limit=limit)


def decode_result(text: str | None, kind: Any) -> Any:
    """A stored result as the type the handler promised; as plain data where it does not fit (any more)."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=kind, dec_hook=read_foreign)
    except Exception:  # noqa: BLE001  # a type's own validation may raise anything
        return msgspec.json.decode(text)


def check_name(name: object, *, what: str, most: int) -> str:
    """A task's or a queue's name: readable in a URL, a metric and a terminal."""
    if not isinstance(name, str):
        raise TypeError(f"{what}: expected a string, got {type(name).__name__}")
    if len(name) > most or not _NAME.fullmatch(name):
        raise Refused(
            f"{what}: {name[:80]!r} is not a name; use up to {most} ASCII letters, digits and . _ : / -",
            field=what,
        )
    return name


def check_key(key: object) -> str:
    """A unique key: text of 1 to 512 bytes."""
    if not isinstance(key, str):
        raise TypeError(f"key: expected a string, got {type(key).__name__}")
    size = len(key.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= MOST_KEY:
        raise Refused(f"key: has {size} bytes; allowed are 1 to {MOST_KEY}", field="key")
    check_text(key, "key")
    return key


def check_order_key(key: object) -> str:
    """An order key: text of 1 to 512 bytes that does not begin with ``#``, as the keys of those who have none do."""
    if not isinstance(key, str):
        raise TypeError(f"order_key: expected a string, got {type(key).__name__}")
    size = len(key.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= MOST_KEY:
        raise Refused(f"order_key: has {size} bytes; allowed are 1 to {MOST_KEY}", field="order_key")
    if key.startswith("#"):
        raise Refused("order_key: must not begin with '#'", field="order_key")
    check_text(key, "order_key")
    return key


def encode_headers(headers: Mapping[str, str] | None) -> str | None:
    """Headers as JSON; names and values are text."""
    if not headers:
        return None
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers: expected a mapping of strings, got {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError("headers: names and values must be strings")
        check_text(name + value, "headers")
    return encode(dict(headers), what="headers", limit=MOST_HEADERS, field="headers")


def check_text(text: str, field: str) -> None:
    """Refuse text that PostgreSQL cannot store."""
    if "\0" in text:
        raise Refused(f"{field}: holds a NUL character, which PostgreSQL cannot store", field=field)
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise Refused(f"{field}: holds a lone surrogate, which is not text", field=field)


def _check_named(parameters: list[inspect.Parameter], task: str) -> None:
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise Refused(
                f"task {task!r}: parameter {parameter.name!r} has no name in the payload; "
                "arguments are stored by name, so *args and positional-only parameters cannot be",
                field=parameter.name,
            )


def _hints(handler: Callable[..., object], task: str) -> dict[str, Any]:
    try:
        return get_type_hints(handler, include_extras=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise Refused(f"task {task!r}: an annotation cannot be resolved: {error}") from None


def _arguments(named: list[inspect.Parameter], hints: Mapping[str, Any], task: str, *, closed: bool) -> Any:
    """A struct of the parameters. Required ones first: msgspec wants it so, and places are not stored."""
    fields = [_field(p, hints) for p in sorted(named, key=lambda p: p.default is not p.empty)]
    try:
        return msgspec.defstruct("Arguments", fields, forbid_unknown_fields=closed, kw_only=True)
    except TypeError as error:
        raise Refused(f"task {task!r}: {error}") from None


def _decoder(kind: Any, task: str) -> msgspec.json.Decoder[Any]:
    try:
        return msgspec.json.Decoder(kind, dec_hook=read_foreign)
    except TypeError as error:
        raise Refused(f"task {task!r}: an argument's type cannot be read from JSON: {error}") from None


def _field(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Any:
    kind = hints.get(parameter.name, Any)
    if kind is object:
        kind = Any
    if parameter.default is parameter.empty:
        return (parameter.name, kind)
    return (parameter.name, kind | msgspec.UnsetType if kind is not Any else Any, msgspec.UNSET)


def _write_foreign(value: object) -> object:
    """pydantic models, where pydantic is in use: anything that can dump itself as plain data."""
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON")


def read_foreign(kind: type[T], value: object) -> T:
    validate = getattr(kind, "model_validate", None)
    if callable(validate):
        try:
            read: T = validate(value)
        except ValueError as error:
            raise msgspec.ValidationError(" ".join(str(error).split())) from None
        return read
    raise msgspec.ValidationError(f"{kind!r} cannot be read from JSON")


_ENCODER = msgspec.json.Encoder(enc_hook=_write_foreign, order="deterministic")


def _is_too_deep(data: bytes) -> bool:
    deepest, layer = 0, [msgspec.json.decode(data)]
    while layer:
        deepest += 1
        layer = [inner for each in layer for inner in _inside(each) if isinstance(inner, dict | list)]
    return deepest > MOST_DEPTH


def _inside(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple | set | frozenset) else []


def _has_nonfinite(value: object) -> bool:
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, float) and not math.isfinite(each):
            return True
        todo.extend(_inside(each))
    return False
