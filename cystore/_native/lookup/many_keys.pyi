from cystore._native.lookup.key_reader import KeyReader, QueryResult

def query_many(
    reader: KeyReader, topic: bytes, keys: list[str], max_count: int, which_end: int
) -> dict[str, QueryResult]: ...
