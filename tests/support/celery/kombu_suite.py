"""kombu's own integration tests of a transport, on a store. kombu has them as classes for each transport to inherit;
this module is copied beside them."""

from __future__ import annotations

import os

import kombu
import pytest
from t.integration import common

import kombu_cystore  # noqa: F401 - kombu alone knows the URL from this import on

STORE = os.environ["CYSTORE_TEST_STORE"]


@pytest.fixture
def connection():
    return kombu.Connection(f"cystore://{STORE}")


@pytest.fixture
def invalid_connection():
    return kombu.Connection("cystore:///proc/no/store")


@pytest.fixture
def failover_connection():
    return kombu.Connection(f"cystore:///proc/no/store;cystore://{STORE}")


class OfBasicFunctionality(common.BasicFunctionality):
    pass


class OfExchangeTypes(common.BaseExchangeTypes):
    pass


class OfPriority(common.BasePriority):
    PRIORITY_ORDER = "asc"


class OfMessage(common.BaseMessage):
    pass


class OfEventLoop(common.BaseEventLoop):
    pass


class OfFailover(common.BaseFailover):
    test_failover_switches_to_alternate_url = None  # asks for the ports of the two servers
