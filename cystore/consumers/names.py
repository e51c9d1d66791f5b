"""The names of groups and of their topics (MixAll, Validators)."""

from __future__ import annotations

import re

from cystore._native.record.argument_checks import any_text
from cystore.engine.manifest.topic_names import TOPIC_BYTES_MAX
from cystore.errors import StoreConfigError
from cystore.layout import OWN_GROUPS

RETRY_PREFIX, DEAD_LETTER_PREFIX = "%RETRY%", "%DLQ%"
SEPARATOR = "@"  # between topic and group in the offset table
GROUP_BYTES_MAX = TOPIC_BYTES_MAX - len(RETRY_PREFIX)  # a group's retry topic is a topic
_GROUP = re.compile(rf"[%|a-zA-Z0-9_-]{{1,{GROUP_BYTES_MAX}}}", re.ASCII)


def checked_group(group: object) -> str:
    """The name of a group. Raises StoreConfigError for one that RocketMQ would refuse, or that is too long for a
    retry topic."""
    name = any_text("group", group, StoreConfigError)
    if not is_group(name):
        raise StoreConfigError(
            f"group: {name!r} must be 1 to {GROUP_BYTES_MAX} characters of letters, digits, % | _ and -"
        )
    return name


def users_group(group: object) -> str:
    """The name of a group that a program moves, or consumes for. Raises StoreConfigError, also for a group whose
    offsets are notes of the store."""
    name = checked_group(group)
    if name in OWN_GROUPS:
        raise StoreConfigError(f"group: the offsets of {name} are notes of the store; give another name")
    return name


def is_group(name: str) -> bool:
    """Whether a text can be the name of a group."""
    return _GROUP.fullmatch(name) is not None


def retry_topic(group: str) -> str:
    """The topic with the messages that a group gets again (MixAll.getRetryTopic)."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """The topic with the messages that a group gave up (MixAll.getDLQTopic)."""
    return DEAD_LETTER_PREFIX + group
