import pytest

from tests.support.golden import stores


@pytest.fixture(params=stores.NAMES)
def golden(request, tmp_path) -> stores.Golden:
    """Every golden store in turn, a fresh writable copy."""
    return stores.unpack_or_skip(request.param, tmp_path)


@pytest.fixture
def unpack_golden(tmp_path):
    """Unpacks one golden store by name, a fresh writable copy each time."""
    return lambda name: stores.unpack_or_skip(name, tmp_path)
