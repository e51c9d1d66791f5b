"""What is in a broker's store: topics, messages, and those with one key."""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

import cystore

SHOWN = 3
BROKER = Path(__file__).with_name("broker.tar.xz")


# maxHashSlotNum and maxIndexNum of that broker, which are not RocketMQ's defaults.
INDEX = {"max_hash_slot_num": 500, "max_index_num": 4000}


def show(path: Path, **settings: int) -> None:
    """Writes topics and messages of a store."""
    with cystore.open(path, read_only=True, **settings) as store:
        keys: dict[str, str] = {}
        for topic, queues in store.topics().items():
            for queue_id, found in queues.items():
                print(f"{topic}/{queue_id}: queue offsets {found.min_offset} to {found.max_offset}")
                for message in store.get(topic, queue_id, found.min_offset, SHOWN).messages:
                    print(f"  {message.queue_offset}  from {message.born_host}  keys {message.keys}")
                    keys |= dict.fromkeys(message.keys, topic)
        for key, topic in sorted(keys.items())[:SHOWN]:
            print(f"{topic}, key {key}: {[message.queue_offset for message in store.query(topic, key)]}")
        print("messages in the log:", sum(1 for _ in store.scan()))


def main() -> None:
    if len(sys.argv) > 1:
        show(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory(prefix="cystore-example-") as folder, tarfile.open(BROKER) as archive:
        archive.extractall(folder, filter="data")
        show(Path(folder) / "store", **INDEX)


if __name__ == "__main__":
    main()
