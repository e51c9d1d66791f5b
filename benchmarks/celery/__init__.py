"""Benchmarks of the Celery plugin beside other result backends."""
