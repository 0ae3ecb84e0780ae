package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

type producerFields struct {
	Batching        bool      `json:"batching"`
	BatchingMax     uint      `json:"batching_max_messages"`
	BatchingDelayMs int64     `json:"batching_delay_ms"`
	KeyBasedBatches bool      `json:"key_based_batches"`
	SendTimeoutMs   int64     `json:"send_timeout_ms"`
	AccessMode      string    `json:"access_mode"`
	Compression     string    `json:"compression"`
	Chunking        bool      `json:"chunking"`
	ChunkMaxSize    uint      `json:"chunk_max_size"`
	PartitionsPollS int64     `json:"partitions_poll_s"`
	Messages        []message `json:"messages"`
	Prefix          string    `json:"prefix"`
	Padding         int       `json:"padding"`
	IntervalMs      int64     `json:"interval_ms"`
}

type message struct {
	Value          []byte            `json:"value"`
	Key            string            `json:"key"`
	OrderingKey    string            `json:"ordering_key"`
	Properties     map[string]string `json:"properties"`
	EventTimeMs    int64             `json:"event_time_ms"`
	SequenceID     *int64            `json:"sequence_id"`
	DeliverAfterMs int64             `json:"deliver_after_ms"`
	DeliverAtMs    int64             `json:"deliver_at_ms"`
}

var accessModes = map[string]pulsar.ProducerAccessMode{
	"": pulsar.ProducerAccessModeShared, "Shared": pulsar.ProducerAccessModeShared,
	"Exclusive": pulsar.ProducerAccessModeExclusive, "WaitForExclusive": pulsar.ProducerAccessModeWaitForExclusive,
}

var compressions = map[string]pulsar.CompressionType{
	"": pulsar.NoCompression, "NONE": pulsar.NoCompression, "LZ4": pulsar.LZ4, "ZLIB": pulsar.ZLib, "ZSTD": pulsar.ZSTD, "SNAPPY": pulsar.SNAPPY,
}

func registerProducers() {
	operations["producer.create"] = createProducer
	operations["producer.send"] = send
	operations["producer.stream"] = func(r *request) (any, error) { return keep(newStream(r)), nil }
	operations["stream.progress"] = func(r *request) (any, error) { return find[*stream](r).progress(), nil }
	operations["stream.end"] = func(r *request) (any, error) { return drop[*stream](r).end(), nil }
	operations["producer.info"] = func(r *request) (any, error) { return describeProducer(find[pulsar.Producer](r)), nil }
	operations["producer.close"] = func(r *request) (any, error) { drop[pulsar.Producer](r).Close(); return nil, nil }
}

func describeProducer(producer pulsar.Producer) object {
	return object{"name": producer.Name(), "last_sequence_id": producer.LastSequenceID(), "topic": producer.Topic()}
}

func createProducer(r *request) (any, error) {
	options := pulsar.ProducerOptions{
		Topic: r.Topic, Name: r.Name, Properties: r.Properties, DisableBatching: !r.Batching,
		BatchingMaxMessages: r.BatchingMax, BatchingMaxPublishDelay: milliseconds(r.BatchingDelayMs, 0),
		SendTimeout: milliseconds(r.SendTimeoutMs, 30*time.Second), ProducerAccessMode: accessModes[r.AccessMode],
		CompressionType: compressions[r.Compression], EnableChunking: r.Chunking, ChunkMaxMessageSize: r.ChunkMaxSize,
		PartitionsAutoDiscoveryInterval: time.Duration(r.PartitionsPollS) * time.Second, BackOffPolicyFunc: newShortBackoff,
		Schema: schemaOf(r.Schema),
	}
	if r.KeyBasedBatches {
		options.BatcherBuilderType = pulsar.KeyBasedBatchBuilder
	}
	if r.Keys != nil {
		options.Encryption = &pulsar.ProducerEncryptionInfo{KeyReader: r.Keys, Keys: []string{r.Keys.Name}}
	}
	producer, err := find[pulsar.Client](r).CreateProducer(options)
	if err != nil {
		return nil, err
	}
	made := describeProducer(producer)
	made["handle"] = keep(producer)
	return made, nil
}

// send publishes all messages of the request without waiting, then flushes, and answers with each one's id or error.
func send(r *request) (any, error) {
	producer := find[pulsar.Producer](r)
	type receipt struct {
		index int
		id    pulsar.MessageID
		err   error
	}
	receipts := make(chan receipt, len(r.Messages))
	for index, wanted := range r.Messages {
		made := build(wanted)
		made.Schema = schemaOf(r.Schema)
		if r.Transaction != 0 {
			made.Transaction = transactionOf(r)
		}
		producer.SendAsync(context.Background(), made, func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			receipts <- receipt{index, id, err}
		})
	}
	go func() { _ = producer.Flush() }()
	answers := make([]object, len(r.Messages))
	for range r.Messages {
		got := <-receipts
		if got.err != nil {
			answers[got.index] = object{"error": describeError(got.err)}
		} else {
			answers[got.index] = object{"id": describeID(got.id)}
		}
	}
	return answers, nil
}

// stream publishes "<prefix> <number><padding>" at a steady pace until it is ended, and notes when each receipt came (wall clock).
type stream struct {
	producer    pulsar.Producer
	prefix      string
	padding     string
	ending      chan struct{}
	running     sync.WaitGroup
	pending     sync.WaitGroup
	lock        sync.Mutex
	sent        int64
	lastReceipt int64
	answers     []object
}

func newStream(r *request) *stream {
	s := &stream{producer: find[pulsar.Producer](r), prefix: r.Prefix, padding: strings.Repeat(" ", r.Padding), ending: make(chan struct{})}
	s.running.Add(1)
	go s.run(milliseconds(r.IntervalMs, 10*time.Millisecond))
	return s
}

func (s *stream) run(interval time.Duration) {
	defer s.running.Done()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-s.ending:
			return
		case <-ticker.C:
		}
		s.lock.Lock()
		number := s.sent
		s.sent++
		s.lock.Unlock()
		s.pending.Add(1)
		value := &pulsar.ProducerMessage{Payload: []byte(fmt.Sprintf("%s %d%s", s.prefix, number, s.padding))}
		s.producer.SendAsync(context.Background(), value, func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			s.receive(number, id, err)
		})
	}
}

func (s *stream) receive(number int64, id pulsar.MessageID, err error) {
	defer s.pending.Done()
	s.lock.Lock()
	defer s.lock.Unlock()
	now := time.Now().UnixMilli()
	answer := object{"number": number, "at_ms": now}
	if err == nil {
		answer["id"] = describeID(id)
		s.lastReceipt = now
	} else {
		answer["error"] = describeError(err)
	}
	s.answers = append(s.answers, answer)
}

func (s *stream) progress() object {
	s.lock.Lock()
	defer s.lock.Unlock()
	return object{"sent": s.sent, "last_receipt_ms": s.lastReceipt}
}

// end sends nothing more and answers what became of every message, once it is known.
func (s *stream) end() object {
	close(s.ending)
	s.running.Wait()
	s.pending.Wait()
	return object{"sent": s.sent, "answers": s.answers}
}

func build(wanted message) *pulsar.ProducerMessage {
	made := &pulsar.ProducerMessage{
		Payload: wanted.Value, Key: wanted.Key, OrderingKey: wanted.OrderingKey, Properties: wanted.Properties,
		SequenceID: wanted.SequenceID, DeliverAfter: milliseconds(wanted.DeliverAfterMs, 0),
	}
	if wanted.EventTimeMs != 0 {
		made.EventTime = time.UnixMilli(wanted.EventTimeMs)
	}
	if wanted.DeliverAtMs != 0 {
		made.DeliverAt = time.UnixMilli(wanted.DeliverAtMs)
	}
	return made
}
