"""`celery cystore queue`: the messages of one queue of a broker in a store."""

from __future__ import annotations

from typing import Any

import click
from kombu import Exchange, Queue

from cystore import Message
from cystore.celery.commands.shared import app_store, broker, command_options, task_display
from cystore.celery.move import peek as peeked
from cystore.operate.command import FOUND_WRONG
from cystore.operate.output import decoded, one_line, time_text, write_json, write_line, write_note


@click.group("queue", epilog=command_options.examples("queue peek celery", "queue peek celery --json"))
def command() -> None:
    """One queue of a broker in a store: look at it, empty it, move its messages.

    Every subcommand takes --json.
    """


@command.command(
    "peek", epilog=command_options.examples("queue peek celery", "queue peek celery --limit 0 --json")
)
@click.argument("name")
@command_options.limit_option(20)
@command_options.json_option
@click.pass_context
def peek(ctx: click.Context, name: str, limit: int, as_json: bool) -> None:
    """The messages that are ready, the next one first. They stay where they are."""
    with broker.reading(ctx) as store:
        broker.check(store, name)
        found = 0
        for message, content in peeked(store, name, limit or 1 << 62):
            found += 1
            if as_json:
                write_json(_object(message, content))
            else:
                write_line(_line(message, content))
        if not found:
            write_note(one_line(f"no message of {name!r} is ready"))
            ctx.exit(FOUND_WRONG)


def _object(message: Message, content: dict[str, Any] | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "put": time_text(message.store_timestamp_ms or 0),
        "put_ms": message.store_timestamp_ms,
        "priority": message.queue_id,
        "queue_offset": message.queue_offset,
    }
    if content is None:
        return {**told, "error": "this is no message of a broker"}
    body = content["body"] or b""
    value, encoding = decoded(body.encode() if isinstance(body, str) else body)
    return {
        **told,
        "task_id": content["headers"].get("id"),
        "task": content["headers"].get("task"),
        "content_type": content.get("content-type"),
        "headers": content["headers"],
        "properties": content["properties"],
        "body": value,
        "body_encoding": encoding,
    }


def _line(message: Message, content: dict[str, Any] | None) -> str:
    if content is None:
        return task_display.line(task_display.at(message.store_timestamp_ms), "no message of a broker")
    headers = content["headers"]
    return task_display.line(
        task_display.at(message.store_timestamp_ms),
        str(headers.get("id") or "-"),
        str(headers.get("task") or "-"),
        task_display.short(f"{headers.get('argsrepr') or ''} {headers.get('kwargsrepr') or ''}".strip()),
        f"eta={headers['eta']}" if headers.get("eta") else "",
        f"priority={message.queue_id}" if message.queue_id else "",
    )


@command.command("purge", epilog=command_options.examples("queue purge celery"))
@click.argument("name")
@command_options.json_option
@click.pass_context
def purge(ctx: click.Context, name: str, as_json: bool) -> None:
    """Drop the messages that are ready; nobody gets them. Those that workers have stay theirs."""
    with broker.connected(ctx, name) as connection, connection.channel() as channel:
        count = channel.queue_purge(name)
    _tell({"queue": name, "purged": count}, f"{name}  {count} messages were dropped", as_json)


@command.command(
    "move", epilog=command_options.examples("queue move celery slow", "queue move celery slow --limit 100")
)
@click.argument("name", metavar="FROM")
@click.argument("to", metavar="TO")
@command_options.limit_option(0)
@command_options.json_option
@click.pass_context
def move(ctx: click.Context, name: str, to: str, limit: int, as_json: bool) -> None:
    """Move the messages that are ready into another queue of the same broker, the next one first.

    A kill in the middle leaves one message in both queues, and loses none.
    """
    if name == to:
        raise app_store.CommandError(f"{name!r} is both queues")
    queue = ctx.obj.app.amqp.queues.get(to) or Queue(to, Exchange(""), routing_key=to)
    with broker.connected(ctx, name) as connection:
        count = broker.move_within(connection, name, to, queue, limit or None)
    _tell({"queue": name, "to": to, "moved": count}, f"{name}  {count} messages are in {to} now", as_json)


def _tell(told: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        write_json(told)
    else:
        write_line(task_display.line(text))
