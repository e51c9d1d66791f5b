"""What an exporter serves, read by Prometheus's own parser."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from cystore.metrics import Metric, exposition
from tests.structure.sources import ROOT
from tests.support.celery.web import TIMEOUT_S, asked
from tools.processes import ends_with_us


class Scrape:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    @classmethod
    def of(cls, found: list[Metric]) -> Scrape:
        """Of metrics that no server serves."""
        return cls(exposition(found))

    def sum(self, name: str, /, **labels: str) -> float:
        """The sum of all samples with a name and these labels."""
        return sum(
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def values(self, name: str, label: str) -> dict[str, float]:
        """The samples of a name by one of their labels."""
        return {sample.labels[label]: sample.value for sample in self.samples if sample.name == name}

    def names(self) -> set[str]:
        """The names of all samples."""
        return {sample.name for sample in self.samples}


def scraped(url: str) -> Scrape:
    """A scrape of an address."""
    answer = asked(url)
    assert answer.status == 200, answer.body
    return Scrape(answer.body.decode())


class MetricsServer:
    """`cystore metrics ... --listen` as a process of its own, until the end of the context."""

    def __init__(self, *words: str | Path) -> None:
        command = [sys.executable, "-m", "cystore", "metrics", *map(str, words), "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            ends_with_us(command), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        if not self.url:
            raise AssertionError(f"no server: {self.process.communicate(timeout=TIMEOUT_S)}")

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=TIMEOUT_S)

    def scrape(self) -> Scrape:
        """What it serves now."""
        return scraped(self.url)
