"""Topics that the store itself uses, and the numbers of delayed messages."""

from __future__ import annotations

from cystore.errors import MessageIllegalError, StoreError
from cystore.layout.shapes import Constants

# Delayed messages until they are due (TopicValidator.RMQ_SYS_SCHEDULE_TOPIC), and the half messages of transactions.
SCHEDULE_TOPIC, HALF_TOPIC = "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"
# The ends of half messages (TransactionalMessageUtil.buildOpTopic), and half messages that no producer ended
# (TopicValidator).
OP_TOPIC, DISCARDED_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"

# Topics that the store writes for itself, with the purpose of each (TopicValidator has those that no client sends to).
# Programs may read them. No call of a program puts to them, consumes them in a group, or deletes them.
# `%RETRY%group` and `%DLQ%group` belong to the program of the group; the plugin's topics belong to the plugin.
OWN_TOPICS: dict[str, str] = {
    SCHEDULE_TOPIC: "it is reserved for delayed messages; put to the message's own topic with delay_level",
    HALF_TOPIC: "it contains half messages; begin a transaction with `begin`",
    OP_TOPIC: "it contains the ends of transactions; end one with `commit` or `rollback`",
    DISCARDED_TOPIC: "it contains half messages that nobody ended; read it with `get`",
}
# Groups whose offsets are notes of the store: TransactionalMessageUtil.buildConsumerGroup.
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
OWN_GROUPS = frozenset({TRANSACTION_GROUP})
# Topics of the plugin into whose queue 0 the store delivers, for the group of the same name: what that has not taken
# stays in the log.
TAKEN_TOPICS = ("celery_eta", "celery_beat")

# Begins the name of a light queue (MixAll.LMQ_PREFIX), which is a topic with one queue, 0.
LMQ_PREFIX = "%LMQ%"

CONSTANTS: Constants = {
    "TOPIC_BYTES_MAX": (127, "the length is a signed byte"),
    "DELAY_LEVELS_MAX": (64, "levels in message_delay_level; RocketMQ's default has 18"),
    "DELAY_SECONDS_MAX": (3_153_600_000, "of one level: a hundred years"),
    "DELAY_RUN_QUEUES": (256, "queue ids of SCHEDULE_TOPIC_XXXX between two queues of a level"),
    "DELAY_PROPERTY_ROOM": (112, "bytes that delivery may add to the properties of a delayed message"),
    "TIMER_QUEUE_ID": (255, "queue of SCHEDULE_TOPIC_XXXX: messages with a due time of their own"),
    "TIMER_ENDS_QUEUE_ID": (
        254,
        "queue of SCHEDULE_TOPIC_XXXX: what was cancelled; nothing is delivered from it",
    ),
}


def refuse_own_topic(topic: str, where: str = "topic", error: type[StoreError] = MessageIllegalError) -> None:
    """Raises `error` for a topic that the store writes for itself."""
    if topic in OWN_TOPICS:
        raise error(f"{where}: {topic} is reserved for messages of the store: {OWN_TOPICS[topic]}")
