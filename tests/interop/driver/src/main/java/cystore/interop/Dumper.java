package cystore.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import io.openmessaging.storage.dledger.entry.DLedgerEntry;
import io.openmessaging.storage.dledger.store.DLedgerStore;
import java.io.File;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.io.Writer;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.ConsumeQueueExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.dledger.DLedgerCommitLog;
import org.apache.rocketmq.store.schedule.ScheduleMessageService;

/** Writes down everything that RocketMQ sees in a store, one JSON object a line. */
final class Dumper {
    private static final String GROUP = "dump";
    private static final int QUERY_MAX = 64;
    private static final int GET_MAX = 32;

    private final File root;
    private final Writer out;
    private DefaultMessageStore store;
    private int rows;
    /** Topic to all of the keys in its records, each in Java's string order. */
    private final TreeMap<String, TreeSet<String>> keys = new TreeMap<>();

    private Dumper(File root, Writer out) {
        this.root = root;
        this.out = out;
    }

    /**
     * Loads and starts the store in {@code root} as a slave, so that it delivers no delayed message, writes its rows and
     * shuts it down. Returns the number of rows.
     */
    static int dump(File root, Map<String, Object> settings, Writer out) throws IOException {
        MessageStoreConfig config = Stores.config(root, settings);
        config.setBrokerRole(BrokerRole.SLAVE);
        Dumper dumper = new Dumper(root, out);
        dumper.checkpoint();
        dumper.row("state", "abort", new File(root, "abort").exists());
        dumper.store = Stores.create(config);
        Stores.load(dumper.store);
        long maxOffsetAfterLoad = dumper.store.getMaxPhyOffset();
        Stores.start(dumper.store);
        try {
            dumper.walk(maxOffsetAfterLoad);
        } finally {
            Stores.close(dumper.store);
        }
        out.flush();
        return dumper.rows;
    }

    private void walk(long maxOffsetAfterLoad) throws IOException {
        row("commitlog", "minOffset", store.getMinPhyOffset(), "maxOffset", store.getMaxPhyOffset(),
            "maxOffsetAfterLoad", maxOffsetAfterLoad);
        delayOffset();
        commitLog();
        for (Map.Entry<String, Map<Integer, ConsumeQueue>> topic : queues().entrySet()) {
            for (Map.Entry<Integer, ConsumeQueue> queue : topic.getValue().entrySet()) {
                queue(topic.getKey(), queue.getKey(), queue.getValue());
            }
        }
        indexFiles();
        for (Map.Entry<String, TreeSet<String>> topic : keys.entrySet()) {
            for (String key : topic.getValue()) {
                query(topic.getKey(), key);
            }
        }
    }

    private void checkpoint() throws IOException {
        File file = new File(root, "checkpoint");
        if (!file.exists()) {
            return;
        }
        try (RandomAccessFile checkpoint = new RandomAccessFile(file, "r")) {
            row("checkpointBeforeLoad", "physicMsgTimestamp", checkpoint.readLong(), "logicsMsgTimestamp",
                checkpoint.readLong(), "indexMsgTimestamp", checkpoint.readLong(), "size", checkpoint.length());
        }
    }

    private void delayOffset() throws IOException {
        ScheduleMessageService schedule = (ScheduleMessageService) Stores.field(store, "scheduleMessageService");
        Map<Object, Object> offsets = new TreeMap<>(JSON.parseObject(schedule.encode(false)).getJSONObject("offsetTable"));
        row("delayOffset", "offsetTable", offsets);
    }

    private void commitLog() throws IOException {
        DLedgerCommitLog ledger = Ledgers.of(store);
        long end = ledger == null ? store.getMaxPhyOffset() : ledger.getDividedCommitlogOffset();
        long offset = store.getMinPhyOffset();
        while (offset < end) {
            SelectMappedBufferResult found = store.getCommitLogData(offset);
            try {
                offset = commitLogFile(found.getByteBuffer(), offset);
            } finally {
                found.release();
            }
        }
        if (ledger != null) {
            entries(ledger.getdLedgerServer().getdLedgerStore());
        }
    }

    /** The committed entries of a DLedger, each with the record in it. */
    private void entries(DLedgerStore ledger) throws IOException {
        row("ledger", "beginIndex", ledger.getLedgerBeginIndex(), "committedIndex", ledger.getCommittedIndex(),
            "endIndex", ledger.getLedgerEndIndex(), "endTerm", ledger.getLedgerEndTerm());
        for (long index = ledger.getLedgerBeginIndex(); index >= 0 && index <= ledger.getCommittedIndex(); index++) {
            DLedgerEntry entry = ledger.get(index);
            row("entry", "index", index, "term", entry.getTerm(), "pos", entry.getPos(), "size", entry.getSize(),
                "magic", entry.getMagic(), "channel", entry.getChannel(), "chainCrc", entry.getChainCrc(), "bodyCrc",
                entry.getBodyCrc());
            record(entry.getPos() + DLedgerEntry.BODY_OFFSET, entry.getBody());
        }
    }

    /** Walks the rest of one file; returns where the next one starts, or where the log ends. */
    private long commitLogFile(ByteBuffer file, long start) throws IOException {
        int position = 0;
        while (position < file.limit()) {
            long offset = start + position;
            int size = file.getInt(position);
            if (file.getInt(position + Records.MAGIC_AT) == Records.BLANK_MAGIC) {
                row("blank", "physicalOffset", offset, "size", size);
            } else {
                file.position(position);
                record(offset, Records.bytes(file, size));
            }
            position += size;
        }
        return start + position;
    }

    private void record(long offset, byte[] bytes) throws IOException {
        MessageExt message = MessageDecoder.decode(ByteBuffer.wrap(bytes), true, false);
        row("record", "physicalOffset", offset, "size", bytes.length, "topic", message.getTopic(), "queueId",
            message.getQueueId(), "queueOffset", message.getQueueOffset(), "sysFlag", message.getSysFlag(),
            "storeTimestamp", message.getStoreTimestamp(), "crc32OfRecord", Records.crc32(bytes));
        Set<String> ofTopic = keys.computeIfAbsent(message.getTopic(), topic -> new TreeSet<>());
        List<String> found = new ArrayList<>();
        found.add(message.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX));
        if (message.getKeys() != null) {
            found.addAll(Arrays.asList(message.getKeys().split(MessageConst.KEY_SEPARATOR)));
        }
        found.stream().filter(key -> key != null && !key.isEmpty()).forEach(ofTopic::add);
    }

    private TreeMap<String, Map<Integer, ConsumeQueue>> queues() {
        TreeMap<String, Map<Integer, ConsumeQueue>> queues = new TreeMap<>();
        store.getConsumeQueueTable().forEach((topic, byId) -> queues.put(topic, new TreeMap<>(byId)));
        return queues;
    }

    private void queue(String topic, int queueId, ConsumeQueue queue) throws IOException {
        long minOffset = store.getMinOffsetInQueue(topic, queueId);
        long maxOffset = store.getMaxOffsetInQueue(topic, queueId);
        if (maxOffset == 0) {
            // The delay service asks for the queue of each of its levels, and RocketMQ makes one for whoever asks.
            return;
        }
        row("queue", "topic", topic, "queueId", queueId, "minOffset", minOffset, "maxOffset", maxOffset,
            "maxPhysicOffset", queue.getMaxPhysicOffset());
        if (MixAll.isLmq(topic)) {
            light(topic, queueId, queue, minOffset, maxOffset);
            return;
        }
        List<Long> times = new ArrayList<>();
        for (long offset = minOffset; offset < maxOffset; ) {
            GetMessageResult got = store.getMessage(GROUP, topic, queueId, offset, GET_MAX, null);
            try {
                if (got.getStatus() != GetMessageStatus.FOUND) {
                    row("miss", "topic", topic, "queueId", queueId, "queueOffset", offset, "status",
                        got.getStatus().name(), "nextOffset", got.getNextBeginOffset());
                }
                for (SelectMappedBufferResult one : got.getMessageMapedList()) {
                    times.add(message(queue, one));
                }
                if (got.getNextBeginOffset() <= offset) {
                    throw new IllegalStateException("getMessage does not go on from " + topic + " " + queueId + " " + offset);
                }
                offset = got.getNextBeginOffset();
            } finally {
                got.release();
            }
        }
        for (int at : new LinkedHashSet<>(Arrays.asList(0, times.size() / 2, times.size() - 1))) {
            if (at >= 0 && at < times.size()) {
                row("offsetByTime", "topic", topic, "queueId", queueId, "timestamp", times.get(at), "offset",
                    store.getOffsetInQueueByTime(topic, queueId, times.get(at)));
            }
        }
    }

    /** A light queue's records have another topic: its entries, and where the messages stand that it gives. */
    private void light(String topic, int queueId, ConsumeQueue queue, long minOffset, long maxOffset)
        throws IOException {
        List<List<Long>> entries = new ArrayList<>();
        List<Long> given = new ArrayList<>();
        for (long offset = minOffset; offset < maxOffset; offset++) {
            SelectMappedBufferResult entry = queue.getIndexBuffer(offset);
            try {
                ByteBuffer bytes = entry.getByteBuffer();
                entries.add(Arrays.asList(bytes.getLong(), (long) bytes.getInt(), bytes.getLong()));
            } finally {
                entry.release();
            }
            GetMessageResult got = store.getMessage(GROUP, topic, queueId, offset, 1, null);
            try {
                got.getMessageBufferList().forEach(one -> given.add(one.getLong(Records.PHYSICAL_OFFSET_AT)));
            } finally {
                got.release();
            }
        }
        row("light", "topic", topic, "queueId", queueId, "entries", entries, "given", given);
    }

    /** Returns the message's store timestamp. */
    private long message(ConsumeQueue queue, SelectMappedBufferResult found) throws IOException {
        byte[] bytes = Records.bytes(found.getByteBuffer(), found.getSize());
        MessageExt message = MessageDecoder.decode(ByteBuffer.wrap(bytes), true, false);
        JSONObject row = fields("msg", "topic", message.getTopic(), "queueId", message.getQueueId(), "queueOffset",
            message.getQueueOffset(), "physicalOffset", message.getCommitLogOffset(), "storeSize", message.getStoreSize());
        entry(row, queue, message.getQueueOffset());
        row.put("bodyB64", base64(message.getBody() == null ? new byte[0] : message.getBody()));
        row.put("bodyCRC", message.getBodyCRC());
        row.put("flag", message.getFlag());
        row.put("sysFlag", message.getSysFlag());
        row.put("tags", message.getTags());
        row.put("keys", message.getKeys());
        row.put("properties", new TreeMap<>(message.getProperties()));
        row.put("propertiesRawB64", base64(Records.rawProperties(bytes)));
        row.put("bornTimestamp", message.getBornTimestamp());
        row.put("bornHost", Hosts.format(message.getBornHost()));
        row.put("storeTimestamp", message.getStoreTimestamp());
        row.put("storeHost", Hosts.format(message.getStoreHost()));
        row.put("reconsumeTimes", message.getReconsumeTimes());
        row.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        row.put("msgId", message.getMsgId());
        write(row);
        return message.getStoreTimestamp();
    }

    private static void entry(JSONObject row, ConsumeQueue queue, long queueOffset) {
        SelectMappedBufferResult entry = queue.getIndexBuffer(queueOffset);
        try {
            ByteBuffer bytes = entry.getByteBuffer();
            row.put("cqPhysicalOffset", bytes.getLong());
            row.put("cqSize", bytes.getInt());
            long tagsCode = bytes.getLong();
            row.put("cqTagsCode", tagsCode);
            if (queue.isExtAddr(tagsCode)) {
                ConsumeQueueExt.CqExtUnit unit = queue.getExt(tagsCode);
                row.put("extSize", unit.getSize());
                row.put("extTagsCode", unit.getTagsCode());
                row.put("extStoreTime", unit.getMsgStoreTime());
                row.put("extBitMap", base64(unit.getFilterBitMap() == null ? new byte[0] : unit.getFilterBitMap()));
            }
        } finally {
            entry.release();
        }
    }

    private void indexFiles() throws IOException {
        File[] files = new File(root, "index").listFiles();
        if (files == null) {
            return;
        }
        Arrays.sort(files);
        for (int n = 0; n < files.length; n++) {
            try (RandomAccessFile file = new RandomAccessFile(files[n], "r")) {
                row("indexFile", "n", n, "size", file.length(), "beginTimestamp", file.readLong(), "endTimestamp",
                    file.readLong(), "beginPhyOffset", file.readLong(), "endPhyOffset", file.readLong(), "hashSlotCount",
                    file.readInt(), "indexCount", file.readInt());
            }
        }
    }

    private void query(String topic, String key) throws IOException {
        QueryMessageResult found = store.queryMessage(topic, key, QUERY_MAX, 0, Long.MAX_VALUE);
        try {
            List<Long> offsets = new ArrayList<>();
            found.getMessageBufferList().forEach(one -> offsets.add(one.getLong(Records.PHYSICAL_OFFSET_AT)));
            row("query", "topic", topic, "key", key, "physicalOffsets", offsets);
        } finally {
            found.release();
        }
    }

    private void row(String type, Object... namesAndValues) throws IOException {
        write(fields(type, namesAndValues));
    }

    private static JSONObject fields(String type, Object... namesAndValues) {
        JSONObject row = new JSONObject(new LinkedHashMap<>());
        row.put("type", type);
        for (int i = 0; i < namesAndValues.length; i += 2) {
            row.put((String) namesAndValues[i], namesAndValues[i + 1]);
        }
        return row;
    }

    private void write(JSONObject row) throws IOException {
        out.write(JSON.toJSONString(row, SerializerFeature.WriteMapNullValue));
        out.write('\n');
        rows++;
    }

    private static String base64(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }
}
