"""The parts of one attachment, put together over a control block."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from weakref import WeakMethod

from cystore._native.append.appender import Appender
from cystore._native.append.group_commit import GroupCommit
from cystore._native.derived.delay import Delivered
from cystore._native.memory.control import CONFIRMED, WROTE, Control
from cystore.attachment.attachment import Attachment as Attachment
from cystore.config import INT_MAX, StoreConfig
from cystore.derived.dispatch.backlog import BacklogKeeper
from cystore.derived.dispatch.dispatcher import Dispatcher
from cystore.derived.dispatch.flush import DerivedFlusher
from cystore.derived.dispatch.follow import Follower
from cystore.derived.dispatch.known_filters import KnownFilters
from cystore.derived.dispatch.remove import QueueRemover
from cystore.derived.files.consume_queue import ConsumeQueues
from cystore.derived.files.index import IndexFiles
from cystore.derived.files.offsets import reserve_queue_offsets
from cystore.derived.reading.dispatch_help import DispatchHelp
from cystore.derived.reading.reader import Reader
from cystore.engine.files.checkpoint import Checkpoint
from cystore.engine.files.mappings import Mappings
from cystore.engine.files.segments import Mode
from cystore.engine.log.allocate import Allocator
from cystore.engine.log.append_policy import AppendPolicy, repair_append
from cystore.engine.log.clock_keeper import ClockKeeper
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.log.disk_space import DiskSpace
from cystore.engine.log.flush import Flusher
from cystore.engine.log.roll import Roller
from cystore.engine.manifest.manifest import Manifest
from cystore.engine.manifest.store_settings import Policy
from cystore.engine.pool.buffers import BufferPool
from cystore.engine.pool.committer import Committer
from cystore.ha.role import master_of, role_of, show_role
from cystore.ha.slave_progress import REPORTED, WANTED, SlaveProgress
from cystore.services.clean import Cleaner
from cystore.services.compact.compactor import Compactor
from cystore.services.compact.newest import Newest
from cystore.services.delay.carry import Carrier
from cystore.services.delay.delivery import Scheduler
from cystore.services.delay.delivery_progress import DeliveryProgress
from cystore.services.delay.timer import Timer
from cystore.services.delay.timer_blocks import TimerBlocks
from cystore.services.delay.waiting import WaitingQueues
from cystore.services.delay.withdraw import Withdrawals
from cystore.services.retention.untaken import Untaken
from cystore.services.service_waits import Sleepers
from cystore.system import folders, platform
from cystore.system.store_lock import StoreLocks


def compose(
    root: Path,
    config: StoreConfig,
    mode: Mode,
    control: Control,
    locks: StoreLocks | None,
    revive: Callable[[], Appender],
    manifest: Manifest,
) -> Attachment:
    """The parts over a control block. Sizes and delay levels are the block's: the first attacher's, or the files'
    own."""
    grows = not config.gives("allocate_ahead_bytes")
    config = dataclasses.replace(
        config,
        mapped_file_size_commit_log_bytes=min(control.commit_log_file_bytes, INT_MAX),
        mapped_file_size_consume_queue_bytes=control.consume_queue_file_bytes,
        max_hash_slot_num=control.max_hash_slot_num,
        max_index_num=control.max_index_num,
        max_queues=control.max_queues,
        message_delay_level=config.delay_level_text(Delivered(control).levels_ms),
    )
    if control.commit_log_file_bytes > INT_MAX:  # only a read-only open: no setting allows this length
        object.__setattr__(config, "mapped_file_size_commit_log_bytes", control.commit_log_file_bytes)
    mappings = Mappings.of(config)
    commit_log = CommitLog(root, config, mode, control, manifest, mappings)
    queues = ConsumeQueues(root, config, mode, control, mappings)
    index = IndexFiles(root, config, mode, control, mappings)
    checkpoint = Checkpoint(root, mode)
    clock = ClockKeeper(control, checkpoint, platform.identity()["boot_id"])
    buffers = committer = None
    if mode is Mode.WRITE and control.pooled:
        buffers = BufferPool(root, manifest.snapshot().store_id, control, config)
        committer = Committer(control, commit_log.files, buffers, config)
        control.committer = committer.commit_to
    reserve = partial(reserve_queue_offsets, root, control)
    allocator = Allocator(control, commit_log, config, reserve, buffers, grows=grows)
    flusher = Flusher(root, control, commit_log, checkpoint, config)
    derived_flusher = DerivedFlusher(
        root, control, queues, index, checkpoint, flusher, config, allocator.headroom_is_gone
    )
    filters = None
    if config.enable_consume_queue_ext and mode is not Mode.PRIVATE:
        filters = KnownFilters(control, manifest, config)
    dispatcher = Dispatcher(
        control,
        commit_log,
        queues,
        index,
        config,
        given_up=lambda: manifest.snapshot().given_up,
        more_queues=allocator.more_queues,
        filters=filters,
        keep_headroom=allocator.keep_headroom if mode is Mode.WRITE else None,
    )
    control.on_repair("dispatch", dispatcher.repair)
    control.on_repair("append", partial(repair_append, control, commit_log, buffers))
    control.on_repair("flush", flusher.repair)
    policy = Policy(manifest, config)
    space = DiskSpace(root, control, policy, commit_log.folders)
    roller = Roller(control, commit_log, allocator, policy, buffers)
    timer = Timer(control, commit_log, queues, TimerBlocks(root, mode), mode)
    delivered = DeliveryProgress(root, control, commit_log, queues, timer, manifest.begin_timer)
    follower = Follower(control, queues, index)
    remover = QueueRemover(control, queues, dispatcher, manifest)
    backlog = BacklogKeeper(control, dispatcher)
    keeps_backlog = mode is Mode.WRITE and bool(config.services)
    appender = None
    if mode is Mode.WRITE:
        show_role(manifest, control)
        cystore_records = config.record_format == "cystore"
        slaves = SlaveProgress(control, config)
        if not folders.has_more(root):
            flusher.commits = GroupCommit(
                control,
                checkpoint.page,
                folders.identity(root),
                behind_max=config.ha_slave_fallbehind_max_bytes,
                wanted=WANTED,
                reported=REPORTED,
            )
            limits_ms = config.slave_timeout_ms, config.sync_flush_timeout_ms
            flusher.commits.slice_ms = min(flusher.commits.slice_ms, *limits_ms)  # it knows no other limit
        append_policy = AppendPolicy(
            control,
            commit_log,
            allocator,
            flusher,
            space,
            revive,
            cystore_records=cystore_records,
            relieve=backlog.relieve if keeps_backlog else None,
            master=partial(master_of, manifest, root),
            replicated=slaves.wait_for,
            announce=slaves.announce,
            buffers=buffers,
            begin_timer=manifest.begin_timer,
        )
        appender = Appender(
            control,
            append_policy,
            record_format=config.record_format,
            store_host=config.store_host,
            file_bytes=control.commit_log_file_bytes,
            max_body_bytes=config.max_message_size_bytes,
            busy_timeout_ms=config.os_page_cache_busy_timeout_ms,
            sync_by_default=config.flush_disk_type == "sync",
            replicated_by_default=role_of(manifest.snapshot()).broker_role == "sync_master",
            delay_levels=len(config.delay_levels_ms()),
            light_queues_max=config.max_lmq_consume_queue_num if config.enable_multi_dispatch else 0,
            commits=flusher.commits,
            delay_max_ms=config.timer_max_delay_s * 1000,
        )
    read_end = WROTE if config.read_unconfirmed else CONFIRMED
    reader = Reader(control, commit_log, queues, index, dispatcher, config, filters, read_end)
    waiting = WaitingQueues(control, commit_log, config)
    dispatch_help = DispatchHelp(
        control, dispatcher, commit_log.files.directory, "delivering only dispatched messages"
    )
    scheduler = Scheduler(control, queues, delivered, dispatch_help, flusher, waiting, appender, config)
    if appender is not None:
        appender.policy.delivery = WeakMethod(scheduler.tell_if_nobody_delivers)
    withdrawals = Withdrawals(
        control, commit_log, reader, delivered, dispatch_help, flusher, appender, config
    )
    carrier = Carrier(control, commit_log, queues, dispatcher, delivered, waiting, appender, config)
    compactor = Compactor(root, control, commit_log, policy, manifest)
    cleaner = Cleaner(
        control,
        commit_log,
        follower,
        remover,
        dispatcher,
        allocator,
        roller,
        space,
        derived_flusher,
        delivered,
        carrier,
        compactor,
        policy,
        manifest,
        Untaken(control, queues),
    )
    compactor.in_force.look_at_open()
    newest = Newest(control, commit_log, reader, compactor)
    composed = Attachment(
        root, config, mode, control, manifest, checkpoint, clock, commit_log, queues, index, dispatcher, flusher,
        derived_flusher, allocator, delivered, scheduler, withdrawals, cleaner, compactor, newest,
        remover, reader, backlog, appender, locks, None, Sleepers(control), buffers, committer,
    )  # fmt: skip
    composed.filters = filters
    composed.at_leave += [reader.counts.merge, compactor.close]
    return composed
