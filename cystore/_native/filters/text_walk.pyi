from cystore._native.filters.program import FilterProgram
from cystore._native.memory.mapping import MappedFile

def next_containing(file: MappedFile, at: int, end: int, limit: int, program: FilterProgram) -> int: ...
