from tests.golden.conftest import golden, unpack_golden

__all__ = ["golden", "unpack_golden"]
