"""Goal: a segment goes to the folder where RocketMQ puts it. Method: hypothesis makes folders, numbers and full disks;
RocketMQ's rule (MultiPathMappedFileQueue.tryCreateMappedFile), written as it is there, says which folder is right."""

from hypothesis import example, given
from hypothesis import strategies as st

from cystore.config import StoreConfig
from cystore.engine.files.log_folders import chosen

paths = st.sampled_from([f"/disk{n}/{name}" for n in range(4) for name in ("a", "B", "é", "a/b")])
numbers = st.integers(0, (1 << 63) // 4096)


def rocketmqs(number: int, writable: set[str], read_only: set[str], full: set[str]) -> str:
    available = set(writable)
    available -= read_only
    available -= full
    if not available:
        available = set(writable)
        available -= read_only
    ordered = sorted(available)
    return ordered[number % len(ordered)]


@given(numbers, st.sets(paths, min_size=1), st.sets(paths), st.sets(paths))
@example(3, {"/disk0/a", "/disk1/a"}, set(), {"/disk0/a", "/disk1/a"})
def test_a_segment_goes_where_rocketmq_puts_it(number, named, read_only, full):
    if named <= read_only:
        return
    config = StoreConfig(
        store_path_commit_log=",".join(named), read_only_commit_log_store_paths=",".join(read_only)
    )
    writable = [path for path, new in config.log_folders().items() if new]
    assert chosen(number, writable, full) == rocketmqs(number, named, read_only, full)


@given(st.sets(paths, min_size=1), numbers)
def test_the_folders_take_turns(named, number):
    assert {chosen(number + n, named) for n in range(len(named))} == named
