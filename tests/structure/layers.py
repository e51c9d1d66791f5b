"""The rooms, once, from the bottom up: a place may import what is below it, and modules of its own that do not lead
back.

A place is a folder or a single module; a module belongs to the longest name that fits. docs/architecture.md shows the
same table; `test_layers.py` reads both. A new module goes into a room; a new room is entered here.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

ROOM_MODULES_MAX = (
    12  # beside the room's `__init__`; the files of one kernel (.pyx, .pxd, .pyi, .h) count once
)
ROOT_MODULES_MAX = 9

# Place, what it is for.
ROOMS: tuple[tuple[str, str], ...] = (
    ("cystore.errors", "the errors that users catch"),
    ("cystore.layout", "every stored or shared byte, as data"),
    ("cystore.value_class", "dataclasses that an import makes quickly"),
    ("cystore.system.links", "links on the way to a store or a file of settings"),
    ("cystore.config", "the settings of a store"),
    ("cystore.config_sources", "settings from the environment and from a TOML file"),
    ("cystore.results", "what reads return"),
    ("cystore._native", "the kernels: compiled modules, one room for each kind"),
    ("cystore._native.system", "kernels that call the operating system: descriptors, mappings, failpoints"),
    ("cystore._native.memory", "kernels of shared memory: control block, locks, mapped files, clock"),
    ("cystore._native.record", "kernels of one record: bytes, checksum, properties, the message"),
    ("cystore._native.filters", "kernels that choose records by properties, and by texts within"),
    ("cystore._native.append", "kernels that append records to the log"),
    ("cystore._native.replication", "kernels that ship the log to other stores, and receive it"),
    ("cystore._native.derived", "kernels of the derived files: queues, index, dispatch, delay"),
    ("cystore._native.scan", "kernels that read records in the order of the log: the walk, columns"),
    ("cystore._native.lookup", "kernels that find messages by queue offset and by key"),
    ("cystore.filters", "filters of messages: SQL92 expressions, compiled, and texts within"),
    ("cystore.clock", "the only caller of clocks on the Python side"),
    ("cystore.system.threads", "threads, calls inside of calls, log lines that are repeated"),
    ("cystore.system", "the operating system: the only callers of open, fsync, rename, flock"),
    ("cystore.system.ranges", "parts of files: read, written, copied, grown, cut"),
    ("cystore.engine", "the log by itself; one room for each part"),
    ("cystore.engine.files", "segment files, their mappings, the checkpoint, the quarantine"),
    ("cystore.engine.manifest", "durable facts that no other file has, one module for each section"),
    ("cystore.engine.pool", "the pool of buffers that appends go to before their segments"),
    ("cystore.engine.log", "the commit log: append policy, flush, allocation, cleaning, disk space"),
    ("cystore.engine.inspect", "a store seen from outside: is it one, which version, its numbers"),
    ("cystore.derived", "files that can be built again from the log; one room for each part"),
    ("cystore.derived.files", "consume queues, their extension, the index, the offset tables"),
    ("cystore.derived.dispatch", "dispatch of the log into the files, flush, removal, online repair"),
    ("cystore.derived.reading", "reads by queue offset, key and time; a log at one moment"),
    ("cystore.recovery.walk", "one walk over the files with pread: for recovery, verify and scrub"),
    ("cystore.recovery", "scan, plan, apply: makes a store's files agree before it is used"),
    ("cystore.verify", "verifies records, queues and index against the log; changes nothing"),
    ("cystore.dledger", "the log of a DLedger broker: found, read, verified; nothing there is changed"),
    ("cystore.services", "work beside appends and reads: each service is a small class with `run_once`"),
    ("cystore.services.retention", "what must stay in the log: named holds, the archive's mark"),
    ("cystore.services.compact", "compaction: the newest record of each key outlives the log's retention"),
    ("cystore.services.delay", "delayed messages: waiting, delivery, carrying forward"),
    ("cystore.services.clean", "the cleaning service"),
    ("cystore.ha.link", "the connection between master and slave: bytes, sockets, secret, TLS"),
    (
        "cystore.ha.facts",
        "what follows besides the log: offsets of consumer groups, removed queues, settings",
    ),
    ("cystore.ha.epochs", "who wrote which part of a log, where two logs part, who is in sync"),
    ("cystore.ha", "replication: a master ships its log, slaves append it at the same offsets"),
    ("cystore.ha.election", "the master of a group is elected in etcd"),
    ("cystore.attachment", "one process's access to one store: attach, its parts, detach"),
    ("cystore.arrivals", "followers of the growing log: named dispatchers, listeners, asyncio"),
    ("cystore.consumers", "consumer groups: shared offsets, lag, consumers that divide the queues"),
    ("cystore.transactions", "half messages: begin, commit, roll back, and asking what became of one"),
    ("cystore.once", "messages that are put once: the second put of a key gives the first one's place"),
    ("cystore.surface", "methods of MessageStore by subject, as classes that it inherits"),
    ("cystore.store", "MessageStore, the one object that users open"),
    ("cystore", "the surface: what users import"),
    ("cystore.metrics", "numbers of a store under Prometheus names, served over HTTP"),
    ("cystore.columns", "records as columns: Arrow, Parquet, sealed segments, archive"),
    ("cystore.operate.packs", "a store in one file: its pieces, written and read"),
    ("cystore.operate", "shared by all commands and jobs: facts, progress, output, exit codes"),
    ("cystore.reports", "the report of a fleet: attempts, tables, plots, one HTML page"),
    ("cystore.celery.versions", "which versions of Celery work"),
    ("cystore.celery.redis_urls", "one URL for a Redis"),
    ("cystore.celery.stores", "one open store for each path and process"),
    ("cystore.celery.base", "the plugin's base: records, processes, pools, leases, queues"),
    ("cystore.celery.transport", "a broker in a store: kombu's transport"),
    ("cystore.celery.move", "a broker's queues: what they hold, and their way into another broker"),
    ("cystore.celery.homes", "a task's home: the store that has its results"),
    ("cystore.celery.replicas", "replicas of other homes on this host"),
    ("cystore.celery.routing", "results of other hosts: requests, answers, the client"),
    ("cystore.celery.chords", "chords: each step is a record"),
    ("cystore.celery.history", "what tasks did, newest first"),
    ("cystore.celery.lifecycle", "the lifecycle log: written, read, searched, drawn"),
    ("cystore.celery.eta", "tasks that wait in the store for their ETA"),
    ("cystore.celery.schedules", "schedules that the store keeps, and their runs"),
    ("cystore.celery.metrics", "metrics of tasks, counted from the lifecycle log"),
    ("cystore.celery.once", "`base=cystore.celery.Once`"),
    ("cystore.celery.results", "parts of the result backend: bytes, expiry, waiting, full disk"),
    ("cystore.celery.backend", "the result backend"),
    ("cystore.celery.registry", "which stores there are, and how they are"),
    (
        "cystore.celery.duties",
        "the store's duties in a worker's main process, ticks, answers, metrics, settings",
    ),
    ("cystore.celery.spark_tasks", "the jobs of cystore.spark as tasks"),
    ("cystore.celery.tasks", "the duties as tasks"),
    ("cystore.celery.beat", "beat's scheduler, on the store"),
    ("cystore.celery.worker", "what a worker gets when it starts"),
    ("cystore.web.answers", "what the page and its API answer, read from the stores"),
    ("cystore.web", "the page on the durable log: ASGI app, JSON API, server"),
    ("cystore.cli.look", "commands that only look"),
    ("cystore.cli.change", "commands that change a store"),
    ("cystore.cli.timed", "commands about messages that wait until a time of their own; `cystore serve`"),
    ("cystore.cli.copies", "commands that make something else: a store of another directory, a report"),
    ("cystore.cli.ha", "commands about replication"),
    ("cystore.cli.host", "commands about the host and the program: doctor, completion"),
    ("cystore.celery.commands.shared", "what the commands share"),
    ("cystore.celery.commands.tasks", "commands about tasks, one module each"),
    ("cystore.celery.commands", "`celery cystore`: the group, and the commands about the store"),
    ("cystore.celery", "the Celery plugin: public modules; its parts are in rooms"),
    ("cystore.cli", "the console command `cystore`"),
    (
        "cystore.contrib.django",
        "a Django project: admin, checks, sending after a commit, the move from other apps",
    ),
    ("cystore.contrib.django.management.commands", "commands of `manage.py`, one module each"),
    ("cystore.contrib.django.management", "where Django looks for commands"),
    ("cystore.contrib", "parts for other frameworks"),
    ("cystore.__main__", "`python -m cystore`"),
    ("cystore.spark.options", "options of a read"),
    ("cystore.spark.tables", "options of a table that SQL made"),
    ("cystore.spark.task_events", "events of tasks as a DataFrame"),
    ("cystore.spark.source", "reading: plan, partitions, batches, streams"),
    ("cystore.spark.sink", "writing: tasks stage rows, the driver commits"),
    ("cystore.spark.data_source", "the data source that Spark sees"),
    ("cystore.spark.frames", "shorter ways to a DataFrame"),
    ("cystore.spark.task_runs", "runs of tasks as a DataFrame"),
    ("cystore.spark.report", "what tasks did, as tables"),
    ("cystore.spark.jobs", "jobs over whole stores, one module each"),
    ("cystore.spark", "the store in Apache Spark"),
    ("pyspark_cystore", "where Spark looks for data sources"),
    ("kombu_cystore", "where kombu looks for the broker's URL"),
    ("celery_app", "the ready-made app"),
)

# Modules that only import once their extra is there: module pattern, the package it needs.
NEEDS_EXTRA: tuple[tuple[str, str], ...] = (
    ("cystore.celery*", "celery"),
    ("celery_app*", "celery"),
    ("cystore.spark*", "pyspark"),
    ("cystore.reports.*", "pyarrow"),
    ("cystore.reports.report_p*", "matplotlib"),
    ("kombu_cystore", "celery"),
    ("pyspark_cystore", "pyspark"),
    ("cystore.celery.metrics.span_export", "opentelemetry"),
    ("cystore.web.*", "celery"),
    ("cystore.web.*", "starlette"),
    ("cystore.web.server", "uvicorn"),
    ("cystore.contrib.*", "celery"),
    ("cystore.contrib.*", "django"),
    ("cystore.columns*", "pyarrow"),
    ("cystore.filters.parser", "lark"),
    ("cystore.columns.archive_delta", "deltalake"),
    ("cystore.columns.archive_iceberg", "pyiceberg"),
)

# Modules that a framework finds by their names, and nobody imports: a pattern.
FOUND_BY_NAME: tuple[str, ...] = (
    "kombu_cystore",
    "pyspark_cystore",
    "cystore.contrib.django.a*",  # apps and admin
    "cystore.contrib.django.sending",  # for users
    "cystore.contrib.django.management*",
)

PICTURE_BEGIN = "<!-- generated by tests/structure/layers.py: begin -->"
PICTURE_END = "<!-- generated by tests/structure/layers.py: end -->"
_NUMBER = {place: number for number, (place, _) in enumerate(ROOMS)}


def place_of(module: str) -> str | None:
    """The place that the module belongs to; None for one that belongs nowhere. Only `cystore` itself belongs to the
    surface."""
    if module == "cystore":
        return module
    parts = module.split(".")
    for count in range(len(parts), 0, -1):
        place = ".".join(parts[:count])
        if place in _NUMBER and place != "cystore":
            return place
    return None


def layer_of(module: str) -> int | None:
    """The number of the module's place, counted from the bottom."""
    place = place_of(module)
    return None if place is None else _NUMBER[place]


def needed_extras(module: str) -> list[str]:
    """Packages that the module cannot be imported without."""
    return [extra for pattern, extra in NEEDS_EXTRA if fnmatchcase(module, pattern)]


def picture() -> str:
    """The table as docs/architecture.md shows it: the top first."""
    rows = [f"{place:<28} {purpose}" for place, purpose in reversed(ROOMS)]
    return "\n".join(["```text", *rows, "```"])
