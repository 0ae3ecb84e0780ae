package main

import (
	"context"

	"github.com/apache/pulsar-client-go/pulsar"
)

// registerTransactions adds the operations on transactions; sends and acknowledgements name theirs by its handle.
func registerTransactions() {
	operations["transaction.begin"] = func(r *request) (any, error) {
		made, err := find[pulsar.Client](r).NewTransaction(milliseconds(r.TimeoutMs, 0))
		if err != nil {
			return nil, err
		}
		id := made.GetTxnID()
		return object{"handle": keep(made), "most": id.MostSigBits, "least": id.LeastSigBits}, nil
	}
	operations["transaction.commit"] = func(r *request) (any, error) {
		return nil, find[pulsar.Transaction](r).Commit(context.Background())
	}
	operations["transaction.abort"] = func(r *request) (any, error) {
		return nil, find[pulsar.Transaction](r).Abort(context.Background())
	}
	operations["transaction.state"] = func(r *request) (any, error) {
		return stateNames[find[pulsar.Transaction](r).GetState()], nil
	}
}

var stateNames = map[pulsar.TxnState]string{
	pulsar.TxnOpen: "OPEN", pulsar.TxnCommitting: "COMMITTING", pulsar.TxnAborting: "ABORTING", pulsar.TxnCommitted: "COMMITTED",
	pulsar.TxnAborted: "ABORTED", pulsar.TxnTimeout: "TIMEOUT", pulsar.TxnError: "ERROR",
}

// transactionOf gives the transaction that a request names.
func transactionOf(r *request) pulsar.Transaction {
	return keptAs[pulsar.Transaction](r.Transaction)
}

// acknowledgeWithin acknowledges one by one: this client has nothing else.
func acknowledgeWithin(from *received, messages []pulsar.Message, transaction pulsar.Transaction) error {
	for _, message := range messages {
		if err := from.consumer.AckWithTxn(message, transaction); err != nil {
			return err
		}
	}
	return nil
}
