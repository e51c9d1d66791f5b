package cystore.interop;

import io.openmessaging.storage.dledger.DLedgerServer;
import io.openmessaging.storage.dledger.store.DLedgerStore;
import java.io.IOException;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.dledger.DLedgerCommitLog;

/** What a broker does for a store whose commit log is a DLedger: there is no broker here. */
final class Ledgers {
    private static final long LEADER_MS = 60_000;

    private Ledgers() {
    }

    /** The store's DLedger; null where it has a plain commit log. */
    static DLedgerCommitLog of(DefaultMessageStore store) {
        return store.getCommitLog() instanceof DLedgerCommitLog ? (DLedgerCommitLog) store.getCommitLog() : null;
    }

    /** Waits until the store is its group's leader. Then it delivers delayed messages, and puts are accepted. */
    static void lead(DefaultMessageStore store) throws IOException {
        DLedgerCommitLog log = of(store);
        if (log == null) {
            return;
        }
        try {
            long until = System.currentTimeMillis() + LEADER_MS;
            while (!log.getdLedgerServer().getMemberState().isLeader()) {
                if (System.currentTimeMillis() > until) {
                    throw new Stores.Refused("no leader was elected ", null);
                }
                Thread.sleep(5);
            }
        } catch (InterruptedException e) {
            throw new IOException(e);
        }
        store.recoverTopicQueueTable();
        store.handleScheduleMessageService(BrokerRole.SYNC_MASTER);
    }

    /** Whether every entry is committed; only then does RocketMQ dispatch it. */
    static boolean isCommitted(DefaultMessageStore store) {
        DLedgerCommitLog log = of(store);
        if (log == null) {
            return true;
        }
        DLedgerServer server = log.getdLedgerServer();
        DLedgerStore ledger = server.getdLedgerStore();
        return ledger.getCommittedIndex() == ledger.getLedgerEndIndex();
    }
}
