package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	recordDefinition = `{"type":"record","name":"Record","namespace":"test","fields":[{"name":"count","type":"long"},` +
		`{"name":"name","type":"string"},{"name":"note","type":["null","string"],"default":null},` +
		`{"name":"tags","type":{"type":"array","items":"string"}}]}`
	timestampDefinition = `{"type":"record","name":"Timestamp","namespace":"google.protobuf","fields":[` +
		`{"name":"seconds","type":"long"},{"name":"nanos","type":"int"}]}`
	oneBatchDelay = 500 * time.Millisecond // the flush ends the batch before
)

// kind is a schema of the client with an encoder of its own, what to publish with it, and how to read a native value.
type kind struct {
	schema  pulsar.Schema
	samples []any
	decode  func(pulsar.Message) (any, error)
}

// record has its fields in the order of their names, so that its JSON has them sorted.
type record struct {
	Count int64    `json:"count" avro:"count"`
	Name  string   `json:"name" avro:"name"`
	Note  *string  `json:"note" avro:"note"`
	Tags  []string `json:"tags" avro:"tags"`
}

var (
	note    = "ß„€“"
	records = []any{
		record{Count: -1, Name: "Käse", Note: &note, Tags: []string{"ä", ""}},
		record{Count: math.MinInt64, Name: "", Note: nil, Tags: []string{}},
		record{Count: math.MaxInt64, Name: "\"\n\\", Note: new(string), Tags: []string{"x"}},
	}
	timestamps = []any{ // the second one is encoded as no bytes at all
		&timestamppb.Timestamp{Seconds: -62135596800, Nanos: 1},
		&timestamppb.Timestamp{},
		&timestamppb.Timestamp{Seconds: math.MaxInt64, Nanos: -1},
	}
)

var kinds = map[string]kind{
	"string": {pulsar.NewStringSchema(nil), []any{"Grüße, Jürgen", "", "日本 🙂\n"}, decoded[*string]},
	"int8":   {pulsar.NewInt8Schema(nil), []any{int8(math.MinInt8), int8(-1), int8(math.MaxInt8)}, decoded[int8]},
	"int16":  {pulsar.NewInt16Schema(nil), []any{int16(math.MinInt16), int16(-2), int16(math.MaxInt16)}, decoded[int16]},
	"int32":  {pulsar.NewInt32Schema(nil), []any{int32(math.MinInt32), int32(-2), int32(math.MaxInt32)}, decoded[int32]},
	"int64":  {pulsar.NewInt64Schema(nil), []any{int64(math.MinInt64), int64(-2), int64(math.MaxInt64)}, decoded[int64]},
	"float": {
		pulsar.NewFloatSchema(nil),
		[]any{float32(-0.1), float32(math.MaxFloat32), float32(math.SmallestNonzeroFloat32)}, decoded[float32],
	},
	"double": {pulsar.NewDoubleSchema(nil), []any{-0.1, math.MaxFloat64, math.Inf(-1)}, decoded[float64]},
	"bytes":  {pulsar.NewBytesSchema(nil), []any{[]byte{0, 0xff, 0x80}, []byte{}, []byte("ä")}, decoded[[]byte]},
	"json":   {pulsar.NewJSONSchema(recordDefinition, nil), records, decoded[record]},
	"avro":   {pulsar.NewAvroSchema(recordDefinition, nil), records, decoded[record]},
	"proto":  {pulsar.NewProtoSchema(timestampDefinition, nil), timestamps, decodedTimestamp},
	"proto_native": {
		pulsar.NewProtoNativeSchemaWithMessage(&timestamppb.Timestamp{}, nil), timestamps, decodedTimestamp,
	},
}

func registerTyped() {
	operations["typed.kinds"] = func(*request) (any, error) { return slices.Sorted(maps.Keys(kinds)), nil }
	operations["typed.publish"] = publishTyped
	operations["typed.read"] = readTyped
}

func kindOf(r *request) (kind, error) {
	known, ok := kinds[r.Kind]
	if !ok {
		return kind{}, fmt.Errorf("no kind %q", r.Kind)
	}
	return known, nil
}

// publishTyped publishes all samples of the kind, and answers with their texts.
func publishTyped(r *request) (any, error) {
	wanted, err := kindOf(r)
	if err != nil {
		return nil, err
	}
	options := pulsar.ProducerOptions{
		Topic: r.Topic, Schema: wanted.schema, BatchingMaxPublishDelay: oneBatchDelay, BackOffPolicyFunc: newShortBackoff,
	}
	if !r.Batching {
		options.BatchingMaxMessages = 1 // the client names the version of the schema in batches only
	}
	producer, err := find[pulsar.Client](r).CreateProducer(options)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	receipts := make(chan error, len(wanted.samples))
	texts := []string{}
	for _, sample := range wanted.samples {
		texts = append(texts, textOf(sample))
		made := &pulsar.ProducerMessage{Value: sample}
		producer.SendAsync(context.Background(), made, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { receipts <- err })
	}
	go func() { _ = producer.Flush() }()
	for range wanted.samples {
		if err := <-receipts; err != nil {
			return nil, err
		}
	}
	return texts, nil
}

// readTyped answers with the texts of the topic's first messages.
func readTyped(r *request) (any, error) {
	wanted, err := kindOf(r)
	if err != nil {
		return nil, err
	}
	reader, err := find[pulsar.Client](r).CreateReader(pulsar.ReaderOptions{
		Topic: r.Topic, StartMessageID: pulsar.EarliestMessageID(), BackoffPolicyFunc: newShortBackoff, Schema: wanted.schema,
	})
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	return readUpTo(r, reader, func(message pulsar.Message) (string, error) {
		value, err := wanted.decode(message)
		if err != nil {
			return "", err
		}
		return textOf(value), nil
	})
}

func decoded[T any](message pulsar.Message) (any, error) {
	var value T
	err := message.GetSchemaValue(&value)
	return value, err
}

func decodedTimestamp(message pulsar.Message) (any, error) {
	value := &timestamppb.Timestamp{}
	err := message.GetSchemaValue(value)
	return value, err
}

// textOf is the same for equal values: numbers as Go writes them, bytes in hexadecimal, the rest as JSON. That of protojson differs from
// build to build.
func textOf(value any) string {
	switch known := value.(type) {
	case string:
		return known
	case *string: // how the client decodes one
		return *known
	case int8:
		return strconv.FormatInt(int64(known), 10)
	case int16:
		return strconv.FormatInt(int64(known), 10)
	case int32:
		return strconv.FormatInt(int64(known), 10)
	case int64:
		return strconv.FormatInt(known, 10)
	case float32:
		return strconv.FormatFloat(float64(known), 'g', -1, 32)
	case float64:
		return strconv.FormatFloat(known, 'g', -1, 64)
	case []byte:
		return hex.EncodeToString(known)
	case *timestamppb.Timestamp:
		return fmt.Sprintf(`{"nanos":%d,"seconds":%d}`, known.Nanos, known.Seconds)
	}
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return string(text)
}
