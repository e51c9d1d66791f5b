"""Fuzz targets for every kernel and every parser of stored bytes: see docs/fuzzing.md."""
