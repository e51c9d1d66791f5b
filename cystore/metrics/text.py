"""A metric, and Prometheus's text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]
# Defaults of those who serve metrics of tasks, with Celery or without: labels, and the age of an unfinished task.
NAMES_MOST, UNFINISHED_S = 200, 3600
Samples = list[tuple[dict[str, str], float]]

STORE = "store"  # the label of the store's path
LABEL_CHARS_MOST = 256


class Metric(NamedTuple):
    """One metric. Its samples are labels and a value. The samples of a histogram are its buckets; each counts the
    buckets below it too. `sums` are the sums of a histogram, if they are known."""

    name: str
    kind: Kind
    help: str
    samples: Samples
    sums: Samples = []  # nobody changes it

    def of_store(self, path: object) -> Metric:
        """The same metric with the label `store`."""
        label = {STORE: str(path)}
        samples, sums = ([({**label, **labels}, value) for labels, value in one] for one in self[3:])
        return self._replace(samples=samples, sums=sums)

    def lines(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Each sample as the text has it: its name with the ending, labels that Prometheus takes, and the value."""
        name = f"{self.name}_bucket" if self.kind == "histogram" else self.name
        for labels, value in self.samples:
            yield name, _taken(labels), value
        for labels, value in self.sums:
            yield f"{self.name}_sum", _taken(labels), value
        if self.kind == "histogram":
            for labels, value in self.samples:
                if labels["le"] == "+Inf":
                    rest = {one: text for one, text in labels.items() if one != "le"}
                    yield f"{self.name}_count", _taken(rest), value


def merged(found: Iterable[Metric]) -> list[Metric]:
    """The metrics with all samples of one name together, as the text needs them."""
    by_name: dict[str, Metric] = {}
    for metric in found:
        before = by_name.get(metric.name)
        if before is not None:
            metric = before._replace(samples=before.samples + metric.samples, sums=before.sums + metric.sums)
        by_name[metric.name] = metric
    return list(by_name.values())


def exposition(found: Iterable[Metric]) -> str:
    """The metrics in Prometheus's text format 0.0.4."""
    lines = []
    for metric in found:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        lines += [f"{name}{_labels(labels)} {value:.17g}" for name, labels, value in metric.lines()]
    return "\n".join(lines) + "\n"


def _taken(labels: dict[str, str]) -> dict[str, str]:
    return {name: _valid(text) for name, text in labels.items()}


def _valid(text: str) -> str:
    """A text in UTF-8 and without a NUL: for others Prometheus refuses the whole scrape."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def label_text(text: str) -> str:
    """A text of unknown origin as the value of a label, not longer than `LABEL_CHARS_MOST`."""
    return _valid(text[:LABEL_CHARS_MOST])


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    pairs = []
    for name, text in labels.items():
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        pairs.append(f'{name}="{escaped}"')
    return "{" + ",".join(pairs) + "}"
