"""A second, slow reading of the files on disk, written from the format alone.

It shares no line with the library: `struct`, `zlib` and the `crc32c` package are all it uses. Every rule is
spelled out in the plainest form that can be checked by eye, so that a test which finds the library and the
oracle of two minds has found a mistake in the library, or in the description of the format.
"""
