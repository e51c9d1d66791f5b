"""Topics that the store itself uses, and the numbers of delayed messages."""

from __future__ import annotations

from cystore.layout.shapes import Constants

# Delayed messages until they are due (TopicValidator.RMQ_SYS_SCHEDULE_TOPIC), and the half messages of transactions.
SCHEDULE_TOPIC, HALF_TOPIC = "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"
# The ends of half messages (TransactionalMessageUtil.buildOpTopic), and half messages that no producer ended
# (TopicValidator).
OP_TOPIC, DISCARDED_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"

# Begins the name of a light queue (MixAll.LMQ_PREFIX), which is a topic with one queue, 0.
LMQ_PREFIX = "%LMQ%"

CONSTANTS: Constants = {
    "TOPIC_BYTES_MAX": (127, "the length is a signed byte"),
    "DELAY_LEVELS_MAX": (64, "levels in message_delay_level; RocketMQ's default has 18"),
    "DELAY_SECONDS_MAX": (3_153_600_000, "of one level: a hundred years"),
    "DELAY_RUN_QUEUES": (256, "queue ids of SCHEDULE_TOPIC_XXXX between two queues of a level"),
    "DELAY_PROPERTY_ROOM": (112, "bytes that delivery may add to the properties of a delayed message"),
}
