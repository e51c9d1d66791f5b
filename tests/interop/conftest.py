from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.oracle import store as oracle
from tests.support.golden.stores import Golden
from tests.support.interop import fresh
from tests.support.interop.rocketmq import RocketMQ, Unavailable, build


@pytest.fixture(scope="session")
def rocketmq() -> Iterator[RocketMQ]:
    """One JVM with RocketMQ 4.9.3 for all tests."""
    try:
        jars = build()
    except Unavailable as reason:
        pytest.skip(str(reason))
    peer = RocketMQ(jars)
    yield peer
    peer.close()


@pytest.fixture(scope="session")
def fresh_stores(rocketmq: RocketMQ, seed: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every shape of store, as RocketMQ wrote it just now; never to be written to."""
    folder = tmp_path_factory.mktemp("fresh")
    fresh.write_all(rocketmq, seed, folder)
    return folder


@pytest.fixture(params=fresh.NAMES)
def golden(request: pytest.FixtureRequest, fresh_stores: Path, tmp_path: Path) -> Golden:
    """Takes the place of the golden stores: every fresh store in turn, a copy that may be written to."""
    return fresh.copy(request.param, fresh_stores, tmp_path)


@pytest.fixture(scope="session")
def views(fresh_stores: Path) -> dict[str, oracle.View]:
    """The oracle's view of the fresh stores, computed once for each."""
    return {
        name: oracle.recover(oracle.read_directory(fresh_stores / name / "store"), "truncate")
        for name in fresh.NAMES
    }


@pytest.fixture
def view(golden: Golden, views: dict[str, oracle.View]) -> oracle.View:
    return views[golden.name]
