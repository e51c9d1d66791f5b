"""Specs of stores for RocketMQ to write, one for every shape that the golden set has and one that mixes them.

A spec has the form of the golden stores' `spec.json`; the random generator decides everything but the shape.
"""

import base64
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import count

TOPICS = ("TopicTest", "%RETRY%please_rename-1", "order|evt_2-A")
WORDS = (
    "alpha",
    "beta",
    "gamma",
    "Ünïcode",
    "тест",
    "消息",
    "中文",
    "😀",
    "log",
    "offset",
    "queue",
    "commit",
)
# "polygenelubricants" has Java's smallest hash code, -2^31.
TAGS = (None, "TagA", "TagB", "x", "标签", "TagA || TagB", "polygenelubricants")
# Java's hash code of "Aa" and "BB" is the same, and so is that of keys built from them.
COLLIDING = ("AaAa", "BBBB", "AaBB", "BBAa")
SMALL = {
    "mapedFileSizeCommitLog": 32768,
    "mappedFileSizeConsumeQueue": 6000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 4000,
}
ODD_PROPERTIES = (
    "",
    "KEYS\x01rawk\x02TAGS\x01TagZ\x02",
    "a\x01\x02KEYS\x01rawk2\x02x\x02\x02TAGS\x01t",
    "k\x01v\x02KEYS\x01 rawk3 rawk3  \x02",
    "TAGS\x01",
)


class Writer:
    """Makes messages; two of them are never alike."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.numbers = count()

    def base64(self, body: bytes) -> str:
        return base64.b64encode(body).decode()

    def body(self, bytes_max: int) -> bytes:
        text = " ".join(self.rng.choices(WORDS, k=bytes_max // 4 + 1)).encode()
        return text[: self.rng.randrange(bytes_max + 1)]

    def keys(self, number: int) -> str:
        rng = self.rng
        return rng.choice(
            (
                f"k{number}",
                f"k{number} common",
                f"k{number}  😀{number % 5}",
                f"{rng.choice(COLLIDING)} k{number}",
            )
        )

    def inner(self, bytes_max: int) -> dict:
        """The properties that a message has in a batch too."""
        rng, number = self.rng, next(self.numbers)
        message: dict = {"bodyB64": self.base64(self.body(rng.choice((1, bytes_max, bytes_max))))}
        if tags := rng.choice(TAGS):
            message["tags"] = tags
        if rng.random() < 0.7:
            message["keys"] = self.keys(number)
        if rng.random() < 0.3:
            message["uniqKey"] = f"AC11000100002A9F{number:016X}"
        if rng.random() < 0.3:
            message["properties"] = {
                "a": "1",
                "城市": "上海",
                "empty": "",
                "long": "v" * rng.randrange(1, 60),
            }
        if rng.random() < 0.2:
            message["flag"] = rng.randrange(-(2**31), 2**31)
        return message

    def message(self, topic: str, queue_id: int, bytes_max: int = 200, **more: object) -> dict:
        rng = self.rng
        message = {
            "topic": topic,
            "queueId": queue_id,
            "bornTimestamp": 1_650_000_000_000 + rng.randrange(10**9),
        }
        message["bornHost"] = f"10.{rng.randrange(256)}.{rng.randrange(256)}.7:{rng.randrange(1, 65536)}"
        message |= self.inner(bytes_max)
        if rng.random() < 0.1:
            message["reconsumeTimes"] = rng.randrange(17)
        return message | more

    def batch(self, topic: str, queue_id: int, members: int, **more: object) -> dict:
        message = self.message(topic, queue_id)
        outer = {name: message[name] for name in ("topic", "queueId", "bornTimestamp", "bornHost")}
        return outer | {"batch": [self.inner(20) for _ in range(members)]} | more

    def any_kind(self, levels: Sequence[int]) -> dict:
        """A message of any kind, or a batch. Delayed messages have one of these levels."""
        rng = self.rng
        message = self.message(rng.choice(TOPICS), rng.randrange(3), rng.choice((0, 30, 300, 1500)))
        match rng.randrange(8):
            case 0:
                message = self.batch(message["topic"], message["queueId"], rng.randrange(1, 6))
            case 1:
                message["bornHost"] = f"[2001:db8::{rng.randrange(1, 65536):x}]:{rng.randrange(1, 65536)}"
            case 2:
                message["storeHost"] = "[fe80::77]:10911"
            case 3:
                message |= {
                    "sysFlag": rng.choice((4, 8, 12)),
                    "preparedTransactionOffset": rng.randrange(2**40),
                }
            case 4:
                message["delayTimeLevel"] = rng.choice(levels)
        return message

    def many(
        self, number: int, topics: tuple[str, ...] = TOPICS, queues: int = 4, bytes_max: int = 300
    ) -> Iterator[dict]:
        for _ in range(number):
            yield self.message(self.rng.choice(topics), self.rng.randrange(queues), bytes_max)


def clean(writer: Writer) -> dict:
    """Several topics, queues, segments with blanks; unicode, empty bodies, odd properties, a compressed body."""
    messages = list(writer.many(350))
    messages += [writer.message("TopicTest", 0, 20) for _ in range(130)]  # a second consume queue file
    for text in ODD_PROPERTIES:
        bare = writer.message("TopicTest", 1)
        messages.append(
            {n: bare[n] for n in ("topic", "queueId", "bornTimestamp", "bodyB64")}
            | {"propertiesString": text}
        )
    compressed = writer.base64(zlib.compress(writer.body(900)))
    messages.append(writer.message("TopicTest", 2) | {"sysFlag": 1, "bodyB64": compressed})
    return {"config": SMALL | {"mappedFileSizeConsumeQueue": 2000}, "messages": messages}


def crash(writer: Writer) -> dict:
    """A checkpoint in the middle of the log, and records behind it that were never dispatched."""
    config = {
        "flushConsumeQueueThoroughInterval": 200,
        "flushIntervalConsumeQueue": 100,
        "flushCommitLogThoroughInterval": 100,
        "flushIntervalCommitLog": 50,
    }
    messages = [
        *writer.many(250),
        {"action": "waitDispatch"},
        {"action": "sleep", "ms": 3500},
        *writer.many(250),
    ]
    messages += [{"action": "waitDispatch"}, {"action": "sleep", "ms": 600}, {"action": "stopReput"}]
    messages += [*writer.many(25), {"action": "flushCommitLog"}]
    return {"config": SMALL | config, "messages": messages, "finish": {"mode": "halt"}}


def crash_zero_checkpoint(writer: Writer) -> dict:
    messages = [*writer.many(180), {"action": "waitDispatch"}, {"action": "stopReput"}, *writer.many(10)]
    return {"config": SMALL, "messages": messages, "finish": {"mode": "halt"}}


def delay(writer: Writer, mode: str = "shutdown") -> dict:
    """Delayed messages, of which the first level's are delivered meanwhile; a level above the last one."""
    messages = [
        writer.message("DelayTopic", n % 2, 40, delayTimeLevel=level, keys=f"level{level} n{n}")
        for level in (1, 2, 4, 18, 25)
        for n in range(writer.rng.randrange(2, 5))
    ]
    return {
        "config": SMALL | {"flushDelayOffsetInterval": 1000},
        "messages": [*messages, {"action": "sleep", "ms": 2500}, writer.message("DelayTopic", 0)],
        "finish": {"mode": mode},
    }


def delay_crash(writer: Writer) -> dict:
    return delay(writer, "halt")


def ext(writer: Writer) -> dict:
    """Consume queue ext files with bitmaps, several of them."""
    config = {
        "enableConsumeQueueExt": True,
        "mappedFileSizeConsumeQueueExt": 1024,
        "bitMapLengthConsumeQueueExt": writer.rng.choice((8, 64, 200)) // 8 * 8,
    }
    return {
        "bitmap": True,
        "config": SMALL | config,
        "messages": list(writer.many(200, ("ExtTopic",), 2, 50)),
    }


def batch(writer: Writer) -> dict:
    messages = []
    for n in range(45):
        more = {"properties": {"batchprop": f"b{n}", "CLUSTER": "DefaultCluster"}} if n % 2 else {}
        messages.append(writer.batch("BatchTopic", n % 3, writer.rng.randrange(1, 8), **more))
        if n % 4 == 0:
            messages.append(writer.message("BatchTopic", n % 3, 20))
    return {"config": SMALL | {"mapedFileSizeCommitLog": 8192}, "messages": messages}


def ipv6(writer: Writer) -> dict:
    messages = []
    for n in range(60):
        message = writer.message("V6Topic", n % 2, 80)
        if n % 3:
            message["bornHost"] = f"[2001:db8::{n:x}:1]:{2000 + n}"
        if n % 2:
            message["storeHost"] = f"[fe80::1:{n:x}]:10911"
        messages.append(message)
    hosts = {"bornHost": "[::1]:7777", "storeHost": "[2001:db8::ff]:10911"}
    messages.append(writer.batch("V6Topic", 1, 5) | hosts)
    return {"config": SMALL | {"mapedFileSizeCommitLog": 8192}, "messages": messages}


def multi_index(writer: Writer) -> dict:
    """Index files of 49 entries. A pause after each put: files made in one millisecond would share a name."""
    messages = [writer.message("IdxTopic", n % 2, 20, keys=f"hk{n} common") for n in range(120)]
    return {
        "config": SMALL | {"maxHashSlotNum": 10, "maxIndexNum": 50},
        "putIntervalMs": 3,
        "messages": messages,
    }


def transaction(writer: Writer) -> dict:
    messages = []
    for n in range(60):
        sys_flag = (0, 4, 8, 12)[n % 4]
        message = writer.message("TxTopic", n % 2, 30, sysFlag=sys_flag, keys=f"tx{n}")
        if sys_flag >= 8:
            message["preparedTransactionOffset"] = 100 * n
        messages.append(message)
    return {"config": SMALL, "messages": [*messages, writer.message("TxTopic", 0)]}


def edge(writer: Writer) -> dict:
    """Records that just fit, just do not fit, and exceed a whole file; the longest topic; extreme fields."""
    around = 91 + len("E")
    room = 4096

    def sized(record_bytes: int, **more: object) -> dict:
        body = bytes(writer.rng.randrange(97, 123) for _ in range(record_bytes - around))
        message = {"topic": "E", "queueId": 0, "bornTimestamp": 0, "bodyB64": writer.base64(body)}
        return message | more

    messages = [sized(room - 8), sized(room - 9), sized(around), sized(room - 8 - around), sized(room - 7)]
    messages[-1]["expect"] = "PUT_OK"
    small = writer.message("E" * 127, 0, 20, keys="long topic")
    messages += [small, small | {"topic": "E" * 128, "expect": "MESSAGE_ILLEGAL"}]
    messages.append(
        writer.message("E", 2**31 - 1, 20, keys="edge", flag=-1, bornTimestamp=0, reconsumeTimes=2**31 - 1)
    )
    return {"config": SMALL | {"mapedFileSizeCommitLog": room}, "messages": messages}


def mixed(writer: Writer) -> dict:
    """Everything in one log, with file sizes chosen at random."""
    rng = writer.rng
    config = {
        "mapedFileSizeCommitLog": rng.randrange(4096, 40_000),
        "mappedFileSizeConsumeQueue": 20 * rng.randrange(20, 200),
        "maxHashSlotNum": rng.randrange(10, 500),
        "maxIndexNum": rng.randrange(400, 4000),
    }
    messages = [writer.any_kind(range(5, 19)) for _ in range(300)]
    return {"config": config, "messages": messages}


SHAPES: dict[str, Callable[[Writer], dict]] = {
    shape.__name__: shape
    for shape in (
        clean,
        crash,
        crash_zero_checkpoint,
        delay,
        delay_crash,
        ext,
        batch,
        ipv6,
        multi_index,
        transaction,
        edge,
        mixed,
    )
}


def spec(shape: str, seed: int) -> dict:
    """The spec of one shape; the same for the same seed."""
    return {"finish": {"mode": "shutdown"}} | SHAPES[shape](Writer(random.Random(f"{seed} {shape}")))
