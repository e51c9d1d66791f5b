"""A channel whose queues are topics, on the parts that kombu gives its own transports (kombu.transport.virtual).

A queue that lasts is the topic ``celery_queue_NAME``, with a queue for each priority. Its messages are claimed by
connections (`cystore.consumers.claims`) and settled by an acknowledgement. Messages for everybody (remote control,
events), and those for a queue that lives as long as its consumer, are in one more topic, which each of them reads from
the place where it began.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid

from cystore import CorruptRecordError, GetStatus, Message, MessageIllegalError, StoreError
from cystore.celery.base.records import CLAIM
from cystore.celery.transport import frames
from cystore.celery.transport.bell import KEY
from cystore.clock import now_ms
from cystore.consumers.claims import Claim, ClaimedQueue
from cystore.engine.manifest.topic_names import TOPIC_BYTES_MAX

log = logging.getLogger("cystore.celery")

QUEUE_PREFIX, PASSING_TOPIC = "celery_queue_", "celery_passing"
AT_ONCE = 64  # messages that one look takes at most
EXPIRES = "x-expires"
_numbers = itertools.count()  # of delivery tags in this process


def topic_of(queue: str) -> str:
    """The topic of a queue that lasts. Raises MessageIllegalError for a name that is too long."""
    topic = QUEUE_PREFIX + _quoted(queue)
    if len(topic) > TOPIC_BYTES_MAX:
        raise MessageIllegalError(
            f"queue {queue!r}: its topic {topic} is longer than {TOPIC_BYTES_MAX} bytes"
        )
    return topic


def _quoted(name: str) -> str:
    """A name in the letters that a topic may have."""
    return quote(name, safe="").replace(".", "%2E").replace("~", "%7E")


class QoS(virtual.QoS):
    """Messages that a channel has: an acknowledgement settles, a rejection gives back or settles."""

    def ack(self, delivery_tag: str) -> None:
        self.channel.settle(delivery_tag)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if requeue:
            self.channel.give_back([delivery_tag])
        else:
            self.channel.settle(delivery_tag)
        self._quick_ack(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        self._flush()
        self.channel.give_back(list(self._delivered))
        self._delivered.clear()
        return []


class Channel(virtual.Channel):
    """A channel of a connection (`Transport`), to which its messages belong."""

    QoS = QoS
    supports_fanout = True
    body_encoding = None  # type: ignore[assignment]  # bodies stay bytes

    def __init__(self, connection: Any, **options: Any) -> None:
        super().__init__(connection, **options)
        self._claims: dict[str, tuple[ClaimedQueue, Claim]] = {}  # by delivery tag
        # Of queues that live as long as their consumer: the next place for each priority.
        self._positions: dict[str, list[int]] = {}
        self._left: dict[str, list[dict[str, Any]]] = {}  # what they gave, and no consumer got
        self._auto_delete: set[str] = set()

    # ------------------------------------------------------------------------------------------ exchanges and queues

    def prepare_queue_arguments(self, arguments: Any, **options: Any) -> Any:
        return to_rabbitmq_queue_arguments(arguments, **options)

    def exchange_declare(
        self, exchange: str | None = None, type: str = "direct", durable: bool = False, auto_delete: bool = False,
        arguments: Any = None, nowait: bool = False, passive: bool = False,
    ) -> None:  # fmt: skip
        name = exchange or f"amq.{type or 'direct'}"
        if not passive and (type or "direct") not in self.exchange_types:
            kinds = ", ".join(sorted(self.exchange_types))
            raise MessageIllegalError(f"exchange {name!r}: there is no type {type!r}, but {kinds}")
        known = self.connection.directory.exchange(name)
        if known is not None and name not in self.state.exchanges:
            self.state.exchanges[name] = {**known, "table": []}
        super().exchange_declare(
            exchange, type, durable=durable, auto_delete=auto_delete, arguments=arguments, nowait=nowait,
            passive=passive,
        )  # fmt: skip
        if known is None and not passive:
            fields = {name: value for name, value in self.state.exchanges[name].items() if name != "table"}
            self.connection.directory.declare(name, fields)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        super().exchange_delete(exchange, if_unused=if_unused, nowait=nowait)
        self.connection.directory.forget_exchange(exchange)

    def typeof(self, exchange: str, default: str = "direct") -> Any:
        if exchange not in self.state.exchanges:
            known = self.connection.directory.exchange(exchange)
            if known is not None:
                self.state.exchanges[exchange] = {**known, "table": []}
        return super().typeof(exchange, default)

    def get_table(self, exchange: str) -> list[tuple[str, str, str]]:
        return self.connection.directory.table(exchange)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        if queue in self._auto_delete and self.typeof(exchange).type == "fanout":
            self._add_passing(queue)  # each consumer of a broadcast has a queue of its own
        self.connection.directory.bind((exchange, routing_key or "", pattern or "", queue))

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **options: Any,
    ) -> None:
        self.state.binding_delete(queue, exchange, routing_key)
        self.connection.directory.unbind(
            lambda one: (one[0], one[1], one[3]) == (exchange, routing_key or "", queue)
        )

    def _new_queue(
        self,
        queue: str,
        auto_delete: bool = False,
        exclusive: bool = False,
        arguments: Any = None,
        **options: Any,
    ) -> None:
        topic_of(queue)  # raises for a name that is too long
        if auto_delete:
            self._auto_delete.add(queue)
        if exclusive or (auto_delete and EXPIRES in (arguments or {})):
            self._add_passing(queue)
        elif self.connection.directory.passing(queue) is None:
            self.connection.directory.add_lasting(queue)

    def _add_passing(self, queue: str) -> None:
        connection = self.connection
        begin = [
            connection.store.next_queue_offset(PASSING_TOPIC, priority)
            for priority in range(self.max_priority + 1)
        ]
        connection.directory.add_passing(queue, begin, connection.owner.id, connection.owner.dead)

    def _has_queue(self, queue: str, **options: Any) -> bool:
        connection = self.connection
        return (
            connection.directory.passing(queue) is not None
            or connection.directory.lasts(queue)
            or bool(connection.claimed_queues(queue))
        )

    def _delete(self, queue: str, *args: Any, **options: Any) -> None:
        self._purge(queue)
        self.connection.directory.forget_queue(queue)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **options: Any
    ) -> None:
        if if_empty and self._size(queue):
            return
        self._delete(queue)
        self.state.queue_bindings_delete(queue)

    # ------------------------------------------------------------------------------------------------------- messages

    def _put(self, queue: str, message: dict[str, Any], **options: Any) -> None:
        connection = self.connection
        if connection.directory.passing(queue) is not None:
            self._pass_on("q", queue, message)
            return
        priority = self._get_message_priority(message)
        expiration = message["properties"].get("expiration")
        try:
            expires = {} if expiration is None else {"expires_at_ms": now_ms() + int(expiration)}
        except (TypeError, ValueError, OverflowError) as error:
            raise MessageIllegalError(
                f"queue {queue!r}: expiration is a number of milliseconds, not {expiration!r}"
            ) from error
        connection.store.put(topic_of(queue), frames.encode(message), queue_id=priority, **expires)
        connection.kept(queue, priority)
        connection.store.wake_key(KEY)

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **options: Any) -> None:
        passing = False
        for _, _, queue in self.get_table(exchange):
            if self.connection.directory.passing(queue) is None:
                self._put(queue, message)
            else:
                passing = True
        if passing:
            self._pass_on("x", exchange, message)

    def _pass_on(self, kind: str, name: str, message: dict[str, Any]) -> None:
        store = self.connection.store
        priority = self._get_message_priority(message)
        store.put(PASSING_TOPIC, frames.encode(message), queue_id=priority, tags=_tag(kind, name))
        store.wake_key(KEY)

    def take(self, queue: str, count: int) -> list[dict[str, Any]]:
        """Up to `count` messages of a queue, which this channel has from now on."""
        connection = self.connection
        begin = connection.directory.passing(queue)
        if begin is not None:
            return self._passing(queue, begin, count)
        found: list[dict[str, Any]] = []
        for claimed in connection.claimed_queues(queue):
            if len(found) >= count:
                break
            found += self._claim(claimed, count - len(found))
        return found

    def _claim(self, claimed: ClaimedQueue, count: int) -> list[dict[str, Any]]:
        while claims := claimed.claim(count):
            try:
                found, gone, later = self._read(claimed, claims)
                claimed.settle(gone)  # they have expired, or are damaged
            except BaseException:
                claimed.give_back(claims)
                raise
            claimed.give_back(later)
            for payload, claim in found:
                properties = payload["properties"]
                properties["delivery_tag"] = tag = f"{claimed.queue_id}.{claim.queue_offset}.{next(_numbers)}"
                if claim.redelivered:
                    payload["headers"]["redelivered"] = True
                    properties.setdefault("delivery_info", {})["redelivered"] = True
                self._claims[tag] = claimed, claim
                properties[CLAIM] = self.connection.held(claimed, claim)
            if found or later:
                return [payload for payload, _ in found]
        return []

    def _read(
        self, claimed: ClaimedQueue, claims: list[Claim]
    ) -> tuple[list[tuple[dict[str, Any], Claim]], list[Claim], list[Claim]]:
        """The messages of claims, the claims whose messages nobody can read any more, and those whose messages cannot
        be read now."""
        known, passed = self._messages(claimed, [claim.queue_offset for claim in claims])
        found: list[tuple[dict[str, Any], Claim]] = []
        gone: list[Claim] = []
        later: list[Claim] = []
        for claim in claims:
            message = known.get(claim.queue_offset)
            if message is None:
                (gone if claim.queue_offset in passed else later).append(claim)
                continue
            payload = self._decoded(message)
            if payload is None:
                gone.append(claim)
                continue
            if message.expires_at_ms is not None:  # so whoever sends it on does not prolong its life
                payload["properties"]["expiration"] = str(max(message.expires_at_ms - now_ms(), 1))
            found.append((payload, claim))
        return found, gone, later

    def _messages(self, claimed: ClaimedQueue, offsets: list[int]) -> tuple[dict[int, Message], set[int]]:
        """The messages at queue offsets, in one read for neighbours; and the offsets that reads went past."""
        known: dict[int, Message] = {}
        passed: set[int] = set()
        at = 0
        while at < len(offsets):
            begin = end = offsets[at]
            while at < len(offsets) and offsets[at] == end:
                at, end = at + 1, end + 1
            offset, count = begin, end - begin
            while offset < end:
                try:
                    result = self.connection.store.get(
                        claimed.topic, claimed.queue_id, offset, min(count, end - offset)
                    )
                except CorruptRecordError as error:
                    if count > 1:
                        count = 1  # the others are read one by one
                        continue
                    log.error(
                        "%s/%d: the message %d is left out: %s",
                        claimed.topic,
                        claimed.queue_id,
                        offset,
                        error,
                    )
                    passed.add(offset)
                    offset += 1
                    continue
                known |= {message.queue_offset or 0: message for message in result.messages}
                if result.next_offset <= offset:
                    break
                passed.update(range(offset, min(result.next_offset, end)))
                offset = result.next_offset
        return known, passed

    def _decoded(self, message: Message) -> dict[str, Any] | None:
        """None for a message that no broker put: the log says so."""
        try:
            return frames.decode(bytes(message.body))
        except CorruptRecordError as error:
            log.error(
                "%s/%s: the message %s is left out: %s",
                message.topic,
                message.queue_id,
                message.queue_offset,
                error,
            )
            return None

    def _passing(self, queue: str, begin: list[int], count: int) -> list[dict[str, Any]]:
        store = self.connection.store
        positions = self._positions.setdefault(queue, list(begin))
        bound = (one[0] for one in self.connection.directory.read()["bindings"] if one[3] == queue)
        wanted = {_tag("q", queue), *(_tag("x", exchange) for exchange in bound)}
        left = self._left.get(queue, [])
        found, left[:count] = left[:count], []
        for priority in range(self.max_priority, self.min_priority - 1, -1):
            most = count
            while len(found) < count:
                at = positions[priority]
                try:
                    result = store.get(
                        PASSING_TOPIC,
                        priority,
                        at,
                        min(most, count - len(found)),
                        tags=" || ".join(sorted(wanted)),
                    )
                except CorruptRecordError as error:
                    if most > 1:
                        most = 1  # the others are read one by one
                    else:
                        log.error("%s/%d: the message %d is left out: %s", PASSING_TOPIC, priority, at, error)
                        positions[priority] = at + 1
                    continue
                for message in result.messages:
                    payload = self._decoded(message)
                    if payload is not None:
                        payload["properties"]["delivery_tag"] = uuid()
                        found.append(payload)
                if result.next_offset == at or result.status is GetStatus.NO_MATCHED_LOGIC_QUEUE:
                    break
                positions[priority] = result.next_offset
        return found

    def settle(self, delivery_tag: str) -> None:
        """The message comes to nobody any more."""
        claimed, claim = self._claims.pop(delivery_tag, (None, None))
        if claimed is not None and claim is not None:
            claimed.settle([claim])

    def give_back(self, delivery_tags: list[str]) -> None:
        """The messages are the next ones that somebody gets."""
        for tag in delivery_tags:
            claimed, claim = self._claims.pop(tag, (None, None))
            if claimed is not None and claim is not None:
                claimed.give_back([claim])
        if delivery_tags and self.connection.is_here:
            with suppress(
                StoreError
            ):  # it was closed first: then somebody finds them when the process has ended
                self.connection.store.wake_key(KEY)

    def put_back(self, queue: str, payloads: Collection[dict[str, Any]]) -> None:
        """Messages that were taken and came to no consumer are the next ones."""
        tags = [payload["properties"]["delivery_tag"] for payload in payloads]
        if self.connection.directory.passing(queue) is not None:
            self._left.setdefault(queue, []).extend(payloads)
        elif tags:
            self.give_back(tags)

    def _size(self, queue: str) -> int:
        if self.connection.directory.passing(queue) is not None:
            return 0
        return sum(claimed.ready() for claimed in self.connection.claimed_queues(queue))

    def _purge(self, queue: str) -> int:
        return sum(claimed.purge() for claimed in self.connection.claimed_queues(queue))

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **options: Any
    ) -> Any:
        def settled(message: Any) -> Any:
            if message.delivery_tag in self._claims:
                self.settle(message.delivery_tag)
            return callback(message)

        done = super().basic_consume(queue, no_ack, settled if no_ack else callback, consumer_tag, **options)
        self.connection.look_soon()
        return done

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        for payload in self.take(queue, 1):
            message = self.Message(payload, channel=self)
            if no_ack:
                self.settle(message.delivery_tag)
            else:
                self.qos.append(message, message.delivery_tag)
            return message
        return None

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.connection.look_soon()

    def room(self) -> int:
        """How many messages this channel may take now."""
        if not self._active_queues or not self.qos.can_consume():
            return 0
        return min(self.qos.can_consume_max_estimate() or AT_ONCE, AT_ONCE)

    def close(self) -> None:
        connection = self.connection
        if not self.closed and connection is not None:
            self.give_back([tag for tag in self._claims if tag not in self.qos._delivered])
        super().close()


def _tag(kind: str, name: str) -> str:
    return f"{kind}:{_quoted(name)}"
