"""Events of orders: each is put once, two groups read them, old ones are removed."""

from __future__ import annotations

import json
import tempfile

import cystore

ORDERS, PADDING = 400, "." * 4_000  # enough for some segments of 256 KiB
SETTINGS = {
    "mapped_file_size_commit_log_bytes": 256 << 10,
    "message_delay_level": "1s 1s 1s 1s",  # a refused event waits a second
    "file_reserved_time_h": 72,
}


def take(store: cystore.MessageStore) -> int:
    """The webhook: it delivers every tenth event twice. Returns the number of events that were new."""
    new = 0
    for number in range(ORDERS):
        event = json.dumps({"order": number, "note": PADDING}).encode()
        for _ in range(2 if number % 10 == 0 else 1):
            put = store.put_once(
                "orders",
                event,
                dedup_key=f"order-{number}",
                window_ms=3_600_000,
                keys=(f"customer-{number % 7}",),
            )
            new += put.is_new
    return new


def read(store: cystore.MessageStore, group: str, fails_at: int | None = None) -> list[int]:
    """A group reads all events; it refuses one of them at first. Returns the orders, in the order of their ends."""
    done, refused = [], False
    with store.consumer(group, ["orders"]) as consumer:
        while len(done) < ORDERS:
            for message in consumer.poll(timeout_s=60):
                number = json.loads(message.text())["order"]
                if number == fails_at and not refused:
                    refused = True
                    consumer.retry(message)  # it comes again after a delay
                else:
                    consumer.ack(message)
                    done.append(number)
    return done


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="cystore-example-") as folder,
        cystore.open(f"{folder}/events", **SETTINGS) as store,
    ):
        print("new events:", take(store))
        print("billing read", len(read(store, "billing")))
        mails = read(store, "mail", fails_at=3)
        print("mail read", len(mails), "and order 3 last:", mails[-1] == 3)
        print(
            "events of a customer:",
            [json.loads(m.text())["order"] for m in store.query("orders", "customer-5", 3)],
        )
        print("lag:", dict(store.groups.lags()))

        store.hold("auditor", store.get("orders", 0, 200, 1).messages[0].physical_offset)
        store.configure(file_reserved_time_h=0)  # from now on nothing is kept for its age
        first = store.topics()["orders"][0].min_offset
        removed = store.clean()
        kept = store.topics()["orders"][0].min_offset
        print(f"cleaned {removed.segments} segments; the first event was {first}, now it is {kept}")
        print("the auditor's event is there:", kept <= 200)


if __name__ == "__main__":
    main()
