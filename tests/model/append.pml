/* The append protocol: intent, publish, repair, durable watermark, flush leadership.
 *
 * Two writers, a flusher and a dispatcher share one store. The killer kills one of them inside of a critical section, or all of them
 * at once, with or without the power. docs/concurrency.md says which function and which failpoint each step stands for.
 *
 * A slot of the log holds one record. Writer 0 makes one put: a batch of two records. Writer 1 makes PUTS_OF_1 puts of one record. Any
 * put may be synced or not. What is one step here is not seen half done by anybody: its parts are under a lock, and no other process
 * looks at them without that lock.
 *
 * Each FAULT_ macro breaks one rule of the protocol. tests/model/test_append_model.py lets the checker find every one of them. */

#ifndef KILLS
#define KILLS 1             /* single processes that are killed */
#endif
#ifndef CRASHES
#define CRASHES 1           /* times that all of them die at once */
#endif
#ifndef ERRORS
#define ERRORS 1            /* syncs that fail */
#endif

#ifndef PUTS_OF_1
#define PUTS_OF_1 1
#endif

#define SLOTS (2 + PUTS_OF_1)
#define PROCESSES 4
#define FLUSHER 2
#define DISPATCHER 3
#define NONE 255

#define FREE 0              /* of a robust lock; N + 1: process N has it */
#define DEAD 9              /* its owner died */

#define EMPTY 0             /* in a slot; a whole record is its name and its queue offset */
#define HALF 1
#define RECORD(name, offset) ((name) + 8 * (offset))
#define NAME(content) ((content) & 7)
#define OFFSET(content) ((content) >> 3)
#define WHOLE(content) (NAME(content) > HALF)
#define NAMES (SLOTS + 2)   /* 2 and 3 are writer 0's batch, 4 and 5 writer 1's puts; even names go to queue 0, odd ones to queue 1 */
#define QUEUE(content) ((content) & 1)
#define FIRST_NAME(writer, put) (2 + 2 * (writer) + (put))
#define COUNT(writer) (2 - (writer))
#define PUTS(writer) ((writer) -> PUTS_OF_1 : 1)

/* The log and the checkpoint: in the page cache, and as they surely are on the disk. `older` is a whole record that stood in the slot
 * before and may have reached the disk by itself. */
byte cache[SLOTS], disk[SLOTS], older[SLOTS];
bool dirty[SLOTS];
byte mark, mark_record = NONE;            /* the durable watermark, and the record that proves it */
byte disk_mark, disk_mark_record = NONE;
byte errors = ERRORS;

/* The control block. */
byte append_lock, flush_lock, dispatch_lock;
bool append_repair, flush_repair;         /* repair_due */
byte wrote, last_record = NONE, flushed, dispatched;
byte intent_from, intent_to;
bool intent_active, sync_failed;
byte claimed[2], next[2], entered[2];     /* of each queue; `entered` is the slot's `dispatched` */

/* What the processes do next, and what the checker remembers beside the store. */
bool killed[PROCESSES];
byte parked;
bool crashed;
byte puts[2];                             /* begun by each writer; one that was killed is not repeated */
byte published[SLOTS];                    /* what stands in a slot since `wrote` passed it */
bool told[NAMES], told_durable[NAMES];    /* the put returned; it returned after a sync */
bool halved;                              /* a power cut took one record of the batch */
bool broken;                              /* an owner of the append lock died, and nobody has finished the repair */

hidden byte i;                            /* of loops within one step */

/* ---------------------------------------------------------------------------------------------- robust locks */

#ifdef FAULT_LOCK_ROBBED
#define ROBS true           /* of a live owner */
#else
#define ROBS false
#endif

#define OPEN(lock) (lock == FREE || lock == DEAD)

inline take(lock, repair) {               /* control_locked: who finds a dead owner notes that a repair is due */
    if
    :: lock == DEAD -> repair = true
    :: else
    fi;
    lock = me + 1
}

inline give(lock) {
    assert(lock == me + 1); lock = FREE
}

/* ------------------------------------------------------------------------------------------- append and repair */

inline repair_append() {                  /* append_policy.repair_append */
    at = intent_from;
    do
    :: atomic { intent_active && wrote == intent_from && at < intent_to ->
            if
            :: WHOLE(cache[at]) -> older[at] = cache[at]
            :: else
            fi;
            cache[at] = EMPTY; dirty[at] = (disk[at] != EMPTY); at++
        }
    :: atomic { intent_active && wrote != intent_from && at < wrote ->
            assert(WHOLE(cache[at]));
            if
            :: next[QUEUE(cache[at])] <= OFFSET(cache[at]) -> next[QUEUE(cache[at])] = OFFSET(cache[at]) + 1
            :: else
            fi;
            last_record = at; at++
        }
    :: atomic { !intent_active || at >= (wrote == intent_from -> intent_to : wrote) -> at = 0; break }
    od;
#ifndef FAULT_CLAIMS_STAY
    atomic { claimed[0] = next[0]; claimed[1] = next[1] }
#endif
    intent_active = false;
    atomic { assert(broken); broken = false; append_repair = false }      /* once for each death */
}

inline write_record(place) {
    atomic { cache[begin + place] = HALF; dirty[begin + place] = true };
    atomic { cache[begin + place] = content[place]; dirty[begin + place] = (disk[begin + place] != content[place]) }
}

inline write_records() {
#ifdef FAULT_BATCH_FORWARD
    write_record(0);
    if
    :: count == 2 -> write_record(1)
    :: else
    fi;
#else
    if
    :: count == 2 -> write_record(1)
    :: else
    fi;
    write_record(0);
#endif
}

inline publish() {                        /* publish_records, move_wrote: the commit point */
    atomic {
        assert(wrote == begin);           /* else another writer owns this place */
        for (i : 0 .. count - 1) {
            assert(published[begin + i] == EMPTY);
            published[begin + i] = content[i]
        }
        wrote = begin + count
    };
    last_record = begin + count - 1
}

inline append() {
    atomic { begin = wrote; end = begin + count; assert(!broken); intent_from = begin; intent_to = begin + count; intent_active = true };
    atomic {
        for (i : 0 .. count - 1) {
            assert(cache[begin + i] == EMPTY);    /* nothing half done is left of anybody */
            content[i] = RECORD(first + i, claimed[QUEUE(first + i)]);
            claimed[QUEUE(first + i)]++
        }
    };
#ifdef FAULT_PUBLISH_FIRST
    publish(); write_records();
#else
    write_records(); publish();
#endif
    atomic { next[QUEUE(content[0])] = OFFSET(content[0]) + 1; content[0] = 0 };
    if
    :: atomic { count == 2 -> next[QUEUE(content[1])] = OFFSET(content[1]) + 1; content[1] = 0 }
    :: else
    fi;
    intent_active = false
}

/* ------------------------------------------------------------------------------------------------------ flush */

inline repair_flush() {                   /* Flusher.repair */
    atomic {
#ifndef FAULT_NOT_DIRTIED_AGAIN
        i = flushed;
        do
        :: i < wrote -> dirty[i] = (cache[i] != disk[i]); i++
        :: else -> break
        od;
#endif
        flush_repair = false
    }
}

inline sync_log() {                       /* MappedFile.sync_range; a failed one is told once, and its pages count as clean */
    atomic {
        for (i : begin .. target - 1) {
            if
            :: !dirty[i] -> skip
            :: dirty[i] -> disk[i] = cache[i]; older[i] = EMPTY; dirty[i] = false
            :: dirty[i] && errors > 0 -> dirty[i] = false; errors--; failed = true
            fi
        }
        i = 0
    }
}

inline store_watermark() {                /* Checkpoint.set_watermark; it never moves back */
    mark_record = target - 1;
    atomic { assert(target >= mark); mark = target }
}

inline store_flushed() {
    atomic { assert(target >= flushed && target <= wrote); flushed = target }
}

inline lead() {                           /* Flusher._lead, with the flush lock */
    atomic { begin = flushed; target = wrote };
    atomic {                              /* Flusher._appended: last_record may be behind wrote, or ahead of what was seen of it */
        if
        :: last_record != NONE && last_record + 1 > target -> target = last_record + 1
        :: else
        fi
    };
    if
    :: target > begin ->
#ifdef FAULT_WATERMARK_FIRST
        store_watermark();
#endif
        sync_log();
        if
        :: atomic { failed -> sync_failed = true; failed = false }
        :: !failed ->
#ifdef FAULT_FLUSHED_FIRST
            store_flushed(); store_watermark()
#else
#ifndef FAULT_WATERMARK_FIRST
            store_watermark();
#endif
            store_flushed()
#endif
        fi
    :: else
    fi
}

inline flush_turn() {
    if
    :: flush_repair -> repair_flush()
    :: else
    fi;
    lead();
    atomic { begin = 0; target = 0; give(flush_lock) }
}

inline flush_to(position) {
    do
    :: flushed >= position -> break
    :: flushed < position && sync_failed -> break
    :: atomic { flushed < position && !sync_failed && OPEN(flush_lock) -> take(flush_lock, flush_repair) };
        flush_turn()
    od
}

/* -------------------------------------------------------------------------------------------------- processes */

proctype writer(byte me) {
    byte at, begin, target, first, count, end, content[2];
    bool failed;
end_of_puts:
    do
    :: puts[me] < PUTS(me) && !crashed && !killed[me] ->
        {
            atomic {
                OPEN(append_lock) || ROBS ->
                first = FIRST_NAME(me, puts[me]); count = COUNT(me); puts[me]++;
                take(append_lock, append_repair)
            };
            if
            :: append_repair ->
#ifdef FAULT_NO_REPAIR
                atomic { append_repair = false; broken = false }
#else
                repair_append()
#endif
            :: else
            fi;
            if
            :: sync_failed -> skip        /* append_allowed */
            :: !sync_failed -> append()
            fi;
            atomic { begin = 0; give(append_lock) };
            if
            :: end ->
                flush_to(end);
                atomic {
                    if
                    :: flushed >= end ->
                        assert(mark >= end);
                        for (i : 0 .. end - 1) {
                            assert(disk[i] == published[i])
                        }
                        for (i : 0 .. count - 1) {
                            told[first + i] = true; told_durable[first + i] = true
                        }
                    :: else
                    fi
                }
            :: atomic { end -> for (i : 0 .. count - 1) { told[first + i] = true } i = 0 }
            :: else
            fi;
            atomic { first = 0; count = 0; end = 0 }
        } unless {
            atomic {
                killed[me] -> killed[me] = false; parked = parked + crashed;
                at = 0; begin = 0; target = 0; first = 0; count = 0; end = 0; content[0] = 0; content[1] = 0; failed = false
            }
        }
    :: atomic { killed[me] -> killed[me] = false; parked = parked + crashed }
    od
}

proctype flusher(byte me) {
    byte begin, target;
    bool failed;
end_of_flushes:
    do
    :: {
end_of_looks:
            do
            :: atomic { !crashed && flushed < wrote && !sync_failed && OPEN(flush_lock) -> take(flush_lock, flush_repair) };
                flush_turn()
            :: atomic { !crashed && (disk_mark != mark || disk_mark_record != mark_record) ->    /* sync_checkpoint, or the kernel */
                    disk_mark = mark; disk_mark_record = mark_record }
            od
        } unless {
            atomic { killed[me] -> killed[me] = false; parked = parked + crashed; begin = 0; target = 0; failed = false }
        }
    od
}

proctype dispatcher(byte me) {
end_of_dispatches:
    do
    :: {
end_of_records:
            do
            :: atomic {                   /* only whole, published records, in the order of their queues */
                    !crashed && dispatched < wrote && OPEN(dispatch_lock) ->
                    dispatch_lock = me + 1; i = cache[dispatched];
                    assert(WHOLE(i) && i == published[dispatched]);
                    assert(OFFSET(i) == entered[QUEUE(i)] || OFFSET(i) + 1 == entered[QUEUE(i)]);  /* one that died had entered it */
                    entered[QUEUE(i)] = OFFSET(i) + 1;
                    i = 0
                };
                atomic { dispatched++; give(dispatch_lock) }
            od
        } unless {
            atomic { killed[me] -> killed[me] = false; parked = parked + crashed }
        }
    od
}

/* ---------------------------------------------------------------------------- kills, power cuts, the next to open */

inline kill_one(victim) {
    atomic {
        kills && (append_lock == victim + 1 || flush_lock == victim + 1 || dispatch_lock == victim + 1) ->
        kills--; killed[victim] = true;
        if :: append_lock == victim + 1 -> append_lock = DEAD; broken = true :: else fi;
#ifndef FAULT_LEADERSHIP_STAYS
        if :: flush_lock == victim + 1 -> flush_lock = DEAD :: else fi;
#endif
        if :: dispatch_lock == victim + 1 -> dispatch_lock = DEAD :: else fi
    }
}

inline lose_power() {                     /* of what was not synced anything may have reached the disk */
    for (i : 0 .. SLOTS - 1) {
        if
        :: cache[i] = disk[i]
        :: dirty[i] -> skip
        :: older[i] != EMPTY -> cache[i] = older[i]
        fi;
        dirty[i] = (cache[i] != disk[i])
    }
    if
    :: mark = disk_mark; mark_record = disk_mark_record
    :: skip
    fi
}

inline recover() {                        /* recovery/, attach._finish */
    end = 0;
    do
    :: end < SLOTS ->
        if
        :: WHOLE(cache[end]) && OFFSET(cache[end]) == offsets[QUEUE(cache[end])] ->
            offsets[QUEUE(cache[end])]++; seen = seen | (1 << NAME(cache[end])); end++
        :: else -> break
        fi
    :: else -> break
    od;
    /* What the watermark promises; a kill between its two stores leaves one that proves nothing. */
    assert(mark == 0 || mark_record + 1 != mark || mark <= end);
    for (i : 2 .. NAMES - 1) {
        assert(!told_durable[i] || seen & (1 << i));
        assert(power || !told[i] || seen & (1 << i))
    }
    assert(power || halved || (seen >> 2 & 1) == (seen >> 3 & 1));    /* of a batch all or none */
    for (i : 0 .. SLOTS - 1) {
        assert(power || published[i] == EMPTY || published[i] == cache[i])
    }
    if
    :: power ->                           /* later recoveries do not find what this power cut took */
        halved = halved || (seen >> 2 & 1) != (seen >> 3 & 1);
        for (i : 2 .. NAMES - 1) {
            told[i] = told[i] && (seen >> i & 1)
        }
    :: else
    fi;
    i = end;
    do                                    /* ZeroLog; durable before anything is appended */
    :: i < SLOTS -> cache[i] = EMPTY; disk[i] = EMPTY; dirty[i] = false; i++
    :: else -> break
    od;
    i = (mark && mark_record + 1 == mark -> mark : 0);
    do                                    /* from the watermark on: made dirty again, and synced */
    :: i < end ->
#ifdef FAULT_CLEAN_PAGES_BELIEVED
        if :: dirty[i] -> disk[i] = cache[i]; dirty[i] = false :: else fi;
#else
        disk[i] = cache[i]; dirty[i] = false;
#endif
        i++
    :: else -> break
    od;
    mark = end; mark_record = (end -> end - 1 : NONE); disk_mark = mark; disk_mark_record = mark_record;
    for (i : 0 .. SLOTS - 1) {
        published[i] = cache[i]; older[i] = EMPTY
    }
    append_repair = false; flush_repair = false; broken = false; sync_failed = false; intent_active = false;
    append_lock = FREE; flush_lock = FREE; dispatch_lock = FREE; intent_from = 0; intent_to = 0;
    wrote = end; last_record = mark_record; flushed = end; dispatched = 0; entered[0] = 0; entered[1] = 0;
    claimed[0] = offsets[0]; next[0] = offsets[0]; claimed[1] = offsets[1]; next[1] = offsets[1];
    end = 0; offsets[0] = 0; offsets[1] = 0; seen = 0; power = false; parked = 0; crashed = false
}

proctype killer() {
    byte kills = KILLS, crashes = CRASHES, end, seen, offsets[2];
    bool power;
end_of_kills:
    do
    :: kill_one(0)
    :: kill_one(1)
    :: kill_one(FLUSHER)
    :: kill_one(DISPATCHER)
    :: atomic {
            crashes ->
            crashes--; crashed = true; killed[0] = true; killed[1] = true; killed[2] = true; killed[3] = true
        };
        atomic {
            parked == PROCESSES ->
            if
            :: power = true; lose_power()
            :: power = false
            fi;
            i = 0;
            recover()
        }
    od
}

init {
    atomic { run writer(0); run writer(1); run flusher(FLUSHER); run dispatcher(DISPATCHER); run killer() }
}
