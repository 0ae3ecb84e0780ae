package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"reflect"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

const pollInterval = 20 * time.Millisecond

func registerReaders() {
	operations["reader.create"] = createReader
	operations["reader.read"] = read
	operations["reader.has_next"] = func(r *request) (any, error) { return find[pulsar.Reader](r).HasNext(), nil }
	operations["reader.last_id"] = func(r *request) (any, error) {
		id, err := find[pulsar.Reader](r).GetLastMessageID()
		if err != nil {
			return nil, err
		}
		return describeID(id), nil
	}
	operations["reader.seek"] = func(r *request) (any, error) { return nil, seek(r, find[pulsar.Reader](r)) }
	operations["reader.close"] = func(r *request) (any, error) { drop[pulsar.Reader](r).Close(); return nil, nil }
	operations["table.create"] = func(r *request) (any, error) {
		options := pulsar.TableViewOptions{Topic: r.Topic, Schema: pulsar.NewBytesSchema(nil), SchemaValueType: reflect.TypeOf([]byte{})}
		if r.Schema != nil {
			options.Schema, options.SchemaValueType = schemaOf(r.Schema), reflect.TypeOf(map[string]any{})
		}
		table, err := find[pulsar.Client](r).CreateTableView(options)
		if err != nil {
			return nil, err
		}
		return keep(table), nil
	}
	operations["table.entries"] = func(r *request) (any, error) { return entries(find[pulsar.TableView](r)), nil }
	operations["table.await"] = awaitEntry
	operations["table.close"] = func(r *request) (any, error) { drop[pulsar.TableView](r).Close(); return nil, nil }
}

func createReader(r *request) (any, error) {
	start, err := messageID(r.Start)
	if err != nil {
		return nil, err
	}
	options := pulsar.ReaderOptions{
		Topic: r.Topic, Name: r.Name, StartMessageID: start, StartMessageIDInclusive: r.Inclusive,
		ReadCompacted: r.ReadCompacted, BackoffPolicyFunc: newShortBackoff, Schema: schemaOf(r.Schema),
	}
	if r.Queue != nil {
		options.ReceiverQueueSize = *r.Queue
	}
	if r.Keys != nil {
		options.Decryption = &pulsar.MessageDecryptionInfo{KeyReader: r.Keys}
	}
	reader, err := find[pulsar.Client](r).CreateReader(options)
	if err != nil {
		return nil, err
	}
	return keep(reader), nil
}

func read(r *request) (any, error) {
	return readUpTo(r, find[pulsar.Reader](r), func(message pulsar.Message) (object, error) { return describeMessage(r, message, 0) })
}

// readUpTo reads as many messages as the request counts, or fewer when its time is over, and shows each.
func readUpTo[T any](r *request, reader pulsar.Reader, show func(pulsar.Message) (T, error)) ([]T, error) {
	limited, cancel := context.WithTimeout(context.Background(), milliseconds(r.TimeoutMs, 0))
	defer cancel()
	messages := []T{}
	for len(messages) < max(r.Count, 1) {
		message, err := reader.Next(limited)
		if errors.Is(err, context.DeadlineExceeded) {
			break
		} else if err != nil {
			return nil, err
		}
		shown, err := show(message)
		if err != nil {
			return nil, err
		}
		messages = append(messages, shown)
	}
	return messages, nil
}

func entries(table pulsar.TableView) object {
	found := object{}
	for key, value := range table.Entries() {
		found[key] = encoded(value)
	}
	return found
}

func encoded(value any) string {
	switch known := value.(type) {
	case []byte:
		return base64.StdEncoding.EncodeToString(known)
	case *[]byte:
		return base64.StdEncoding.EncodeToString(*known)
	case map[string]any: // a record, as JSON
		text, _ := json.Marshal(known)
		return base64.StdEncoding.EncodeToString(text)
	}
	return ""
}

// awaitEntry looks again and again: the client's own event comes on a goroutine that holds its lock.
func awaitEntry(r *request) (any, error) {
	table := find[pulsar.TableView](r)
	deadline := time.Now().Add(milliseconds(r.TimeoutMs, 0))
	for encoded(table.Get(r.Key)) != r.Value && time.Now().Before(deadline) {
		time.Sleep(pollInterval)
	}
	return entries(table), nil
}
