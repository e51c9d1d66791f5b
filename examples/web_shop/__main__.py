"""Two orders: one is shipped, one has a card that is declined. Then the log's answers."""

from __future__ import annotations

from examples.fleet import PATIENCE_S, place, shown, worker

APP = "examples.web_shop.shop"


def main() -> None:
    with place() as folder:
        with worker(APP, folder):
            from examples.web_shop import shop

            shipped = shop.place(17, ["tea", "cup"], card="1111")
            shop.place(18, ["tea"], card="4000")
            print(shipped.get(timeout=PATIENCE_S))
            print("order-18:", shop.app.AsyncResult("pay-18").get(timeout=PATIENCE_S, propagate=False))

        # The worker has ended. The store answers all the same.
        shown(APP, "timeline", "ship-17")
        shown(APP, "timeline", "pay-18")
        shown(APP, "failures")
        shown(APP, "top")


if __name__ == "__main__":
    main()
