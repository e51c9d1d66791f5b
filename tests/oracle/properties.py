"""The property string of a record: `name 0x01 value 0x02 name 0x01 value ...`."""

from collections.abc import Mapping

from tests.oracle.java import text

NAME_END = "\x01"
PAIR_END = "\x02"


def parse(data: bytes) -> dict[str, str]:
    """Pairs with an empty name or an empty value are skipped; of a repeated name the last pair counts."""
    found = {}
    for pair in text(data).split(PAIR_END):
        name, separator, value = pair.partition(NAME_END)
        if separator and name and value:
            found[name] = value
    return found


def encode(properties: Mapping[str, str]) -> bytes:
    """The last pair ends without its 0x02, as RocketMQ's encoder leaves it."""
    return PAIR_END.join(f"{name}{NAME_END}{value}" for name, value in properties.items()).encode()
