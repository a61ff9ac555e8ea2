"""From what a user writes to sinks: `tensorboard`, `prometheus:port=9108`, or the objects themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from unisono.common.console import Console
from unisono.common.errors import UserError
from unisono.common.spec import Option, parse
from unisono.show.sinks.mlflow import MLflow
from unisono.show.sinks.opentelemetry import OpenTelemetry
from unisono.show.sinks.prometheus import Prometheus
from unisono.show.sinks.sink import Sink
from unisono.show.sinks.tensorboard import TensorBoard
from unisono.show.sinks.wandb import WandB
from unisono.show.sinks.webhook import Webhook

VARIABLE, SEPARATOR = "UNISONO_SINKS", ";"
SINKS: dict[str, type[Any]] = {
    sink.name: sink for sink in (TensorBoard, WandB, MLflow, Prometheus, OpenTelemetry, Webhook)
}


def chosen(sinks: str | Sink | Sequence[str | Sink] | None, environment: str) -> tuple[Sink, ...]:
    """What `attach` was given and what the environment holds, each once."""
    given = [sinks] if isinstance(sinks, str | Sink) else list(sinks or ())
    wanted: list[Sink] = []
    for one in given:
        wanted += [one] if isinstance(one, Sink) else read(one)
    return tuple(dict.fromkeys([*wanted, *_read_environment(environment)]))


def _read_environment(text: str) -> list[Sink]:
    """A mistake in a variable must not keep unisono from listening."""
    try:
        return read(text)
    except UserError as error:
        Console().complain(f"{VARIABLE} is passed over ({error})")
        return []


def checked(text: str) -> str:
    """The same text, if it names sinks that can be used here."""
    found = read(text)
    if not found:
        raise UserError("`--sink` should name a sink. Found an empty name. Write: --sink tensorboard")
    for sink in found:
        sink.check_installed()
    return text


def read(text: str) -> list[Sink]:
    """Several are separated by semicolons, options by commas. In a URL write %3B and %2C for them."""
    if not isinstance(text, str):
        raise UserError(f"a sink should be a name or an object of `unisono.sinks`. Found {type(text).__name__}.")
    # A comma or a semicolon that was not meant to separate can put any piece of an address anywhere.
    may_quote = "://" not in text and Webhook.name not in text
    return [_read_one(one.strip(), may_quote) for one in text.split(SEPARATOR) if one.strip()]


def _read_one(text: str, may_quote: bool) -> Sink:
    name, options = parse(text)
    if name not in SINKS:
        found = _found(name, may_quote and name.isidentifier())
        hint = "" if may_quote else " (a semicolon inside an address is written %3B)"
        raise UserError(f"a sink should be one of {', '.join(SINKS)}. {found} Write: --sink tensorboard{hint}")
    known = {option.name: option for option in fields(SINKS[name])}
    values = dict(_option(name, known, option, may_quote) for option in options)
    for option in known.values():
        if option.default is MISSING and option.name not in values:
            raise UserError(f"the sink `{name}` needs `{option.name}`. Found none. Write: {name}:{option.name}=...")
    sink: Sink = SINKS[name](**values)
    return sink


def _option(sink: str, known: dict[str, Field[Any]], option: Option, may_quote: bool) -> tuple[str, Any]:
    name, value = option.name, option.value
    if name in known and not value:
        raise UserError(f"`{name}` of the sink `{sink}` needs a value. Found none. Write: {sink}:{name}=VALUE")
    if name not in known:
        example = "https://..." if sink == Webhook.name else "VALUE"
        hint = "" if may_quote else " (a comma inside is written %2C)"
        raise UserError(
            f"the sink `{sink}` takes the options {', '.join(known)}. {_found(name, may_quote)} "
            f"Write: {sink}:{next(iter(known))}={example}{hint}"
        )
    if not str(known[name].type).startswith("int"):
        return name, value
    if not value.isdecimal():
        raise UserError(f"`{name}` of the sink `{sink}` should be a whole number. {_found(value, may_quote)}")
    return name, int(value)


def _found(text: str, may_quote: bool) -> str:
    """Addresses often hold a secret, and what we say ends up in logs."""
    return f"Found `{text}`." if may_quote else "Found something else."
