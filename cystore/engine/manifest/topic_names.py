"""Which texts can be the name of a topic (Validators.checkTopic). The kernels take no other records.

A name is checked before it becomes durable. An entry of the manifest with another name is skipped: it can belong to no
record. `cystore info` and `cystore verify` report it.
"""

from __future__ import annotations

import re

from cystore._native.record.argument_checks import any_text
from cystore.errors import StoreConfigError
from cystore.layout import CONSTANTS

TOPIC_BYTES_MAX = CONSTANTS["TOPIC_BYTES_MAX"][0]
TOPIC = re.compile(rf"[%|a-zA-Z0-9_-]{{1,{TOPIC_BYTES_MAX}}}\Z", re.ASCII)


def is_topic(name: str) -> bool:
    """Whether a text can be the name of a topic."""
    return TOPIC.match(name) is not None


def checked_topic(topic: object) -> str:
    """The name of a topic. Raises StoreConfigError."""
    name = any_text("topic", topic, StoreConfigError)
    if not is_topic(name):
        shown = ascii(name) if len(name) <= TOPIC_BYTES_MAX else f"a text of {len(name)} characters"
        raise StoreConfigError(
            f"topic: {shown} must be 1 to {TOPIC_BYTES_MAX} characters of letters, digits, % | _ and -"
        )
    return name
