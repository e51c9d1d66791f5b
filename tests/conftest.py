"""What every test shares: which build is under test, the seed, the groups, what may be skipped, a Redis, other
builds."""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from tools import build, redis_server

ROOT = Path(__file__).resolve().parent.parent
IN_CI = os.environ.get("CI", "") == "true"
SEED = int(os.environ.get("CYSTORE_SEED") or random.SystemRandom().randrange(2**32))
os.environ["CYSTORE_SEED"] = str(SEED)  # for pytest's other processes: all must choose the same cases
VARIANT = os.environ.get("CYSTORE_BUILD", "")
CASES_SANITIZED = 1  # of each test, in `make test`

# A variant's tree goes before the repository, whose own build would be found first otherwise.
if VARIANT:
    sys.path.insert(0, str(build.tree(VARIANT)))

# The folder decides the group; the markers are what `make test` selects by.
GROUP_OF_FOLDER = {
    "crash": "crash",
    "interop": "rocketmq",
    "celery": "celery",
    "spark": "spark",
    "structure": "structure",
}

# No test fails because the machine is busy: neither an example nor the making of examples has a time.
hypothesis.settings.register_profile(
    "cystore",
    deadline=None,
    print_blob=True,
    max_examples=25,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "quick", parent=hypothesis.settings.get_profile("cystore"), max_examples=6
)
hypothesis.settings.register_profile(
    "long", parent=hypothesis.settings.get_profile("cystore"), max_examples=2000
)
hypothesis.settings.load_profile(os.environ.get("CYSTORE_HYPOTHESIS", "cystore"))


@pytest.fixture(autouse=True)
def _library_log() -> Iterator[None]:
    """Every test finds the library's log as programs do. A command run in this process takes it over."""
    logger = logging.getLogger("cystore")
    before = logger.propagate, logger.level, list(logger.handlers)
    logger.propagate = True
    logger.setLevel(logging.NOTSET)
    yield
    logger.propagate, logger.level, logger.handlers[:] = before


def pytest_configure(config: pytest.Config) -> None:
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # a shell that started us in the background; children inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = SEED


def pytest_report_header() -> list[str]:
    return [f"seed: CYSTORE_SEED={SEED}", f"build under test: {VARIANT or 'in place'}"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        group = GROUP_OF_FOLDER.get(item.path.relative_to(ROOT / "tests").parts[0])
        if group:
            item.add_marker(group)
    _sample(items)


def _sample(items: list[pytest.Item]) -> None:
    """Of the cases of a test that is marked `sampled(count)` the seed chooses `count` for `make test`. All others are
    slow.

    With sanitized kernels every test is sampled: they need one way through the kernels, not each way to get there.
    """
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for test, those in cases.items():
        marker = those[0].get_closest_marker("sampled")
        count = CASES_SANITIZED if VARIANT == "asan" else marker.args[0] if marker else len(those)
        chosen = random.Random(f"{SEED} {test}").sample(those, min(count, len(those)))
        for item in those:
            if item not in chosen:
                item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Objects of the collection live until the end, so the garbage collector need not visit them in each of its
    rounds."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """In CI a skipped test is a failed one, unless it says why it may be skipped there too."""
    report = yield
    if (
        IN_CI
        and report.skipped
        and not hasattr(report, "wasxfail")
        and not item.get_closest_marker("may_skip")
    ):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} skipped, which CI does not allow: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def seed() -> int:
    """The run's seed, printed in the header; CYSTORE_SEED repeats a run."""
    return SEED


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """A generator that depends on the run's seed and the test's name only, not on the tests before it."""
    return random.Random(f"{SEED} {request.node.nodeid}")


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """pytest's own. For a test that is marked `disk` it is on a disk, if there is one, wherever pytest makes its
    folders."""
    from cystore.system.platform import file_system  # of the build under test

    if request.node.get_closest_marker("disk") is None or file_system(tmp_path) != "tmpfs":
        yield tmp_path
        return
    for parent in map(Path, (tempfile.gettempdir(), "/var/tmp", ROOT / "build")):
        if os.access(parent, os.W_OK) and file_system(parent) != "tmpfs":
            with tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True) as folder:
                yield Path(folder)
            return
    yield tmp_path


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """An empty folder on tmpfs where there is one: for stores of very many files."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def redis() -> Iterator[redis_server.Redis]:
    """A Redis for the whole session; a test that needs it to itself takes `redis_server(own=True)`."""
    if not redis_server.available():
        pytest.skip("no redis-server: `make test` installs one, or set CYSTORE_REDIS_URL")
    with redis_server.redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def build_environment() -> Callable[[str], dict[str, str]]:
    """`build_environment("failpoints")`: builds that variant and gives the whole environment for a process that
    imports it."""
    built: dict[str, dict[str, str]] = {}

    def environment(variant: str) -> dict[str, str]:
        if variant not in built:
            build.build_once(variant)
            built[variant] = {**os.environ, **build.environment(variant)}
        return dict(built[variant])

    return environment
