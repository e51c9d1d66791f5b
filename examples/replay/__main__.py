"""Three letters fail; the cause is mended; the same letters are sent again."""

from __future__ import annotations

import json
import subprocess

from examples.fleet import PATIENCE_S, celery, environment, place, shown, worker

APP = "examples.replay.letters"


def answer(*words: str) -> list[dict]:
    """The JSON lines of `celery -A APP cystore ...`."""
    command = [*celery(APP), "cystore", *words, "--json"]
    done = subprocess.run(command, env=environment(), timeout=PATIENCE_S, check=True, stdout=subprocess.PIPE)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> None:
    with place() as folder:
        from examples.replay import letters

        box = folder / "letters"
        with worker(APP, folder):
            sent = [letters.write.delay(str(box), name, f"Dear {name}") for name in ("ann", "bob", "eve")]
            for result in sent:
                result.get(timeout=PATIENCE_S, propagate=False)
        shown(APP, "failures")

        box.mkdir()  # the cause is mended
        with worker(APP, folder):
            failed = [row["task_id"] for row in answer("failures")]
            for row in answer("rerun", *failed, "--yes"):
                print(row["rerun_of"], "sent again as", row["task_id"])
                letters.app.AsyncResult(row["task_id"]).get(timeout=PATIENCE_S)
        print("written:", sorted(path.name for path in box.iterdir()))


if __name__ == "__main__":
    main()
