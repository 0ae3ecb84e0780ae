// The official Go client, driven over standard input: one JSON request a line, {"id", "op", ...}; each is answered on standard output
// with {"id", "ok"} or {"id", "error": {"type", "message"}}, in the order in which they finish. The log goes to standard error.
package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

const maxRequestBytes = 64 << 20

type object = map[string]any

var (
	operations = map[string]func(*request) (any, error){
		"version":           func(*request) (any, error) { return clientVersion(), nil },
		"client.create":     createClient,
		"client.partitions": func(r *request) (any, error) { return find[pulsar.Client](r).TopicPartitions(r.Topic) },
		"client.close":      func(r *request) (any, error) { drop[pulsar.Client](r).Close(); return nil, nil },
	}
	kept       = map[int64]any{}
	lastHandle int64
	lock       sync.Mutex
)

// request has the fields of all operations; an absent one is its type's zero or nil.
type request struct {
	ID     int64  `json:"id"`
	Op     string `json:"op"`
	Handle int64  `json:"handle"`

	URL                string `json:"url"`
	OperationTimeoutMs int64  `json:"operation_timeout_ms"`
	Transactions       bool   `json:"transactions"`
	TokenFile          string `json:"token_file"`
	User               string `json:"user"`
	Password           string `json:"password"`
	TrustFile          string `json:"trust_file"`
	TimeoutMs          int64  `json:"timeout_ms"`
	Count              int    `json:"count"`

	Topic      string            `json:"topic"`
	Name       string            `json:"name"`
	Properties map[string]string `json:"properties"`
	Keys       *keys             `json:"keys"`
	Schema     *schemaFields     `json:"schema"`
	Kind       string            `json:"kind"`

	producerFields
	consumerFields

	Start         string `json:"start"`
	Inclusive     bool   `json:"start_inclusive"`
	Key           string `json:"key"`
	Value         string `json:"value"`
	To            string `json:"to"`
	TimeMs        *int64 `json:"time_ms"`
	Ack           bool   `json:"ack"`
	Force         bool   `json:"force"`
	DelayMs       int64  `json:"delay_ms"`
	Active        bool   `json:"active"`
	Partition     *int32 `json:"partition"`
	Transaction   int64  `json:"transaction"`
	ReadCompacted bool   `json:"read_compacted"`
	Decode        bool   `json:"decode"`
}

// keys is a pair of keys in memory.
type keys struct {
	Name    string `json:"name"`
	Public  string `json:"public"`
	Private string `json:"private"`
}

func (k *keys) PublicKey(name string, meta map[string]string) (*crypto.EncryptionKeyInfo, error) {
	return crypto.NewEncryptionKeyInfo(name, []byte(k.Public), meta), nil
}

func (k *keys) PrivateKey(name string, meta map[string]string) (*crypto.EncryptionKeyInfo, error) {
	return crypto.NewEncryptionKeyInfo(name, []byte(k.Private), meta), nil
}

func newHandle() int64 {
	lock.Lock()
	defer lock.Unlock()
	lastHandle++
	return lastHandle
}

func keep(value any) int64 {
	handle := newHandle()
	lock.Lock()
	defer lock.Unlock()
	kept[handle] = value
	return handle
}

func find[T any](r *request) T {
	return keptAs[T](r.Handle)
}

func keptAs[T any](handle int64) T {
	lock.Lock()
	defer lock.Unlock()
	found, ok := kept[handle].(T)
	if !ok {
		panic(fmt.Sprintf("no object %d", handle))
	}
	return found
}

func drop[T any](r *request) T {
	found := find[T](r)
	lock.Lock()
	defer lock.Unlock()
	delete(kept, r.Handle)
	return found
}

func clientVersion() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/apache/pulsar-client-go" {
			return module.Version
		}
	}
	return ""
}

// shortBackoff reconnects quickly: the tests restart the server on the same port.
type shortBackoff struct{ delay time.Duration }

func newShortBackoff() backoff.Policy { return &shortBackoff{} }

func (b *shortBackoff) Next() time.Duration {
	b.delay = min(max(2*b.delay, 50*time.Millisecond), 400*time.Millisecond)
	return b.delay
}

func (b *shortBackoff) IsMaxBackoffReached() bool { return b.delay >= 400*time.Millisecond }

func (b *shortBackoff) Reset() { b.delay = 0 }

func createClient(r *request) (any, error) {
	level := slog.LevelInfo
	if os.Getenv("DRIVER_DEBUG") != "" {
		level = slog.LevelDebug
	}
	handler := slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})
	shown, err := authentication(r)
	if err != nil {
		return nil, err
	}
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL:               r.URL,
		OperationTimeout:  milliseconds(r.OperationTimeoutMs, 30*time.Second),
		MemoryLimitBytes:  64 << 20,
		Logger:            log.NewLoggerWithSlog(slog.New(handler)),
		EnableTransaction: r.Transactions,

		Authentication:        shown,
		TLSTrustCertsFilePath: r.TrustFile,
	})
	if err != nil {
		return nil, err
	}
	return keep(client), nil
}

// authentication is a user and a password, a token read again whenever the broker asks, or nothing.
func authentication(r *request) (pulsar.Authentication, error) {
	if r.User != "" {
		return pulsar.NewAuthenticationBasic(r.User, r.Password)
	}
	if r.TokenFile == "" {
		return nil, nil
	}
	return pulsar.NewAuthenticationTokenFromFile(r.TokenFile), nil
}

func milliseconds(value int64, otherwise time.Duration) time.Duration {
	if value == 0 {
		return otherwise
	}
	return time.Duration(value) * time.Millisecond
}

// messageID reads "earliest", "latest" or a serialized id.
func messageID(text string) (pulsar.MessageID, error) {
	switch text {
	case "earliest":
		return pulsar.EarliestMessageID(), nil
	case "latest":
		return pulsar.LatestMessageID(), nil
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, err
	}
	return pulsar.DeserializeMessageID(raw)
}

func describeID(id pulsar.MessageID) object {
	return object{
		"raw": base64.StdEncoding.EncodeToString(id.Serialize()), "ledger": id.LedgerID(), "entry": id.EntryID(),
		"partition": id.PartitionIdx(), "batch_index": id.BatchIdx(),
	}
}

func describeMessage(r *request, message pulsar.Message, handle int64) (object, error) {
	described := object{
		"handle": handle, "id": describeID(message.ID()), "value": message.Payload(), "key": orNull(message.Key()),
		"ordering_key": orNull(message.OrderingKey()), "properties": message.Properties(), "topic": message.Topic(),
		"redelivery_count": message.RedeliveryCount(), "publish_time_ms": message.PublishTime().UnixMilli(),
		"event_time_ms": max(0, message.EventTime().UnixMilli()), "producer": message.ProducerName(),
		"index": message.Index(), "broker_publish_time_ms": millis(message.BrokerPublishTime()),
		"schema_version": versionOf(message),
	}
	if r.Decode {
		var decoded map[string]any
		if err := message.GetSchemaValue(&decoded); err != nil {
			return nil, err
		}
		described["decoded"] = decoded
	}
	return described, nil
}

func millis(at *time.Time) any {
	if at == nil {
		return nil
	}
	return at.UnixMilli()
}

func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func describeError(err error) object {
	kind := fmt.Sprintf("%T", err)
	var known *pulsar.Error
	if errors.As(err, &known) {
		kind = fmt.Sprintf("Result%d", known.Result())
	}
	return object{"type": kind, "message": err.Error()}
}

func answer(r *request) (reply object) {
	defer func() {
		if thrown := recover(); thrown != nil {
			reply = object{"id": r.ID, "error": object{"type": "panic", "message": fmt.Sprint(thrown)}}
			debug.PrintStack()
		}
	}()
	operation, ok := operations[r.Op]
	if !ok {
		return object{"id": r.ID, "error": object{"type": "unsupported", "message": "no operation " + r.Op}}
	}
	result, err := operation(r)
	if err != nil {
		return object{"id": r.ID, "error": describeError(err)}
	}
	return object{"id": r.ID, "ok": result}
}

func main() {
	registerProducers()
	registerConsumers()
	registerReaders()
	registerTransactions()
	registerTyped()
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(make([]byte, 64<<10), maxRequestBytes)
	var output sync.Mutex
	encoder := json.NewEncoder(os.Stdout)
	for input.Scan() {
		r := &request{}
		if err := json.Unmarshal(input.Bytes(), r); err != nil {
			fmt.Fprintln(os.Stderr, "bad request:", err)
			os.Exit(2)
		}
		go func() {
			reply := answer(r)
			output.Lock()
			defer output.Unlock()
			if err := encoder.Encode(reply); err != nil {
				os.Exit(3)
			}
		}()
	}
}
