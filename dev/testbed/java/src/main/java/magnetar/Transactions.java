package magnetar;

import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.impl.PulsarClientImpl;

/** Operations on transactions; sends and acknowledgements name theirs by its handle. */
final class Transactions {
    private Transactions() {}

    static void register(Map<String, Main.Operation> operations) {
        operations.put("transaction.begin", r -> {
            Transaction made = Main.find(r, PulsarClient.class).newTransaction()
                .withTransactionTimeout(r.big("timeout_ms"), TimeUnit.MILLISECONDS).build().get();
            return Request.object("handle", Main.keep(made), "most", made.getTxnID().getMostSigBits(), "least",
                made.getTxnID().getLeastSigBits());
        });
        operations.put("transaction.commit", r -> Main.find(r, Transaction.class).commit().get());
        operations.put("transaction.abort", r -> Main.find(r, Transaction.class).abort().get());
        operations.put("transaction.state", r -> Main.find(r, Transaction.class).getState().name().replace("_", ""));
        operations.put("transaction.end_again", r -> {
            var coordinators = ((PulsarClientImpl) Main.find(r, "client", PulsarClient.class)).getTcClient();
            var id = Main.find(r, Transaction.class).getTxnID();
            return (r.flag("commit", true) ? coordinators.commitAsync(id) : coordinators.abortAsync(id)).get();
        });
    }

    /** The transaction that a request names. */
    static Transaction of(Request request) {
        return Main.find(request, "transaction", Transaction.class);
    }

    static Void acknowledge(Consumer<?> consumer, List<MessageId> ids, Transaction transaction) throws Exception {
        return (ids.size() == 1 ? consumer.acknowledgeAsync(ids.get(0), transaction) : consumer.acknowledgeAsync(ids, transaction)).get();
    }
}
