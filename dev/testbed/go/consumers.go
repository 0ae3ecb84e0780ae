package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

type consumerFields struct {
	Topics                 []string          `json:"topics"`
	Pattern                string            `json:"pattern"`
	PatternPollS           int64             `json:"pattern_poll_s"`
	Subscription           string            `json:"subscription"`
	SubscriptionProperties map[string]string `json:"subscription_properties"`
	Type                   string            `json:"type"`
	Mode                   string            `json:"mode"`
	Position               string            `json:"position"`
	Queue                  *int              `json:"queue"`
	NackDelayMs            int64             `json:"nack_delay_ms"`
	AckGroupMs             int64             `json:"ack_group_ms"`
	AckReceipt             bool              `json:"ack_receipt"`
	BatchIndexAck          bool              `json:"batch_index_ack"`
	Retry                  bool              `json:"retry"`
	DeadLetter             *deadLetter       `json:"dead_letter"`
	StickyRanges           []int             `json:"sticky_ranges"`
	OutOfOrder             bool              `json:"out_of_order"`
	Handles                []int64           `json:"handles"`
}

type deadLetter struct {
	MaxRedeliver        uint32 `json:"max_redeliver"`
	Topic               string `json:"topic"`
	RetryTopic          string `json:"retry_topic"`
	InitialSubscription string `json:"initial_subscription"`
}

// received is a consumer, what it has received and is not done with, and whether it is the active one of a Failover subscription.
type received struct {
	consumer pulsar.Consumer
	lock     sync.Mutex
	changed  chan struct{}
	messages map[int64]pulsar.Message
	active   map[int32]bool
}

var types = map[string]pulsar.SubscriptionType{
	"": pulsar.Exclusive, "Exclusive": pulsar.Exclusive, "Shared": pulsar.Shared, "Failover": pulsar.Failover, "Key_Shared": pulsar.KeyShared,
}

func (r *received) BecameActive(_ pulsar.Consumer, _ string, partition int32) {
	r.setActive(partition, true)
}

func (r *received) BecameInactive(_ pulsar.Consumer, _ string, partition int32) {
	r.setActive(partition, false)
}

func (r *received) setActive(partition int32, active bool) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.active[partition] = active
	r.active[-1] = active // this client calls the only part of a topic without partitions its first partition
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *received) forgetActive() {
	r.lock.Lock()
	defer r.lock.Unlock()
	clear(r.active)
}

func (r *received) awaitActive(partition int32, wanted bool, timeout time.Duration) bool {
	deadline := time.After(timeout)
	for {
		r.lock.Lock()
		active, known := r.active[partition]
		changed := r.changed
		r.lock.Unlock()
		if known && active == wanted {
			return true
		}
		select {
		case <-changed:
		case <-deadline:
			return false
		}
	}
}

func (r *received) describe(asked *request, message pulsar.Message) (object, error) {
	handle := newHandle()
	r.lock.Lock()
	r.messages[handle] = message
	r.lock.Unlock()
	return describeMessage(asked, message, handle)
}

// look gives the messages of the handles.
func (r *received) look(handles []int64) []pulsar.Message {
	r.lock.Lock()
	defer r.lock.Unlock()
	var found []pulsar.Message
	for _, handle := range handles {
		found = append(found, r.messages[handle])
	}
	return found
}

// take gives the messages of the handles and forgets them.
func (r *received) take(handles []int64) []pulsar.Message {
	found := r.look(handles)
	r.lock.Lock()
	defer r.lock.Unlock()
	for _, handle := range handles {
		delete(r.messages, handle)
	}
	return found
}

func registerConsumers() {
	operations["consumer.create"] = createConsumer
	operations["consumer.receive"] = receive
	operations["consumer.ack"] = acknowledge
	operations["consumer.ack_cumulative"] = func(r *request) (any, error) {
		from := find[*received](r)
		return nil, from.consumer.AckCumulative(from.take(r.Handles)[0])
	}
	operations["consumer.nack"] = func(r *request) (any, error) {
		from := find[*received](r)
		for _, message := range from.take(r.Handles) {
			from.consumer.Nack(message)
		}
		return nil, nil
	}
	operations["consumer.reconsume"] = func(r *request) (any, error) {
		from := find[*received](r)
		for _, message := range from.take(r.Handles) {
			from.consumer.ReconsumeLater(message, milliseconds(r.DelayMs, 0))
		}
		return nil, nil
	}
	operations["consumer.seek"] = func(r *request) (any, error) {
		return nil, seek(r, find[*received](r).consumer)
	}
	operations["consumer.unsubscribe"] = func(r *request) (any, error) {
		if r.Force {
			return nil, find[*received](r).consumer.UnsubscribeForce()
		}
		return nil, find[*received](r).consumer.Unsubscribe()
	}
	operations["consumer.last_ids"] = func(r *request) (any, error) {
		ids, err := find[*received](r).consumer.GetLastMessageIDs()
		described := []object{}
		for _, id := range ids {
			one := describeID(id)
			one["topic"] = id.Topic()
			described = append(described, one)
		}
		return described, err
	}
	operations["consumer.await_active"] = func(r *request) (any, error) {
		partition := int32(-1)
		if r.Partition != nil {
			partition = *r.Partition
		}
		return find[*received](r).awaitActive(partition, r.Active, milliseconds(r.TimeoutMs, 0)), nil
	}
	operations["consumer.forget_active"] = func(r *request) (any, error) { find[*received](r).forgetActive(); return nil, nil }
	operations["consumer.close"] = func(r *request) (any, error) { drop[*received](r).consumer.Close(); return nil, nil }
}

type seeker interface {
	Seek(pulsar.MessageID) error
	SeekByTime(time.Time) error
}

func seek(r *request, what seeker) error {
	if r.TimeMs != nil {
		return what.SeekByTime(time.UnixMilli(*r.TimeMs))
	}
	id, err := messageID(r.To)
	if err != nil {
		return err
	}
	if id.PartitionIdx() < 0 { // a consumer of this client refuses its own earliest and latest ids
		id = pulsar.NewMessageID(id.LedgerID(), id.EntryID(), id.BatchIdx(), 0)
	}
	return what.Seek(id)
}

func createConsumer(r *request) (any, error) {
	made := &received{changed: make(chan struct{}), messages: map[int64]pulsar.Message{}, active: map[int32]bool{}}
	options := pulsar.ConsumerOptions{
		Topic: r.Topic, Topics: r.Topics, TopicsPattern: r.Pattern, SubscriptionName: r.Subscription, Name: r.Name,
		AutoDiscoveryPeriod: time.Duration(max(r.PatternPollS, r.PartitionsPollS)) * time.Second,
		Properties:          r.Properties, SubscriptionProperties: r.SubscriptionProperties, Type: types[r.Type],
		NackRedeliveryDelay: milliseconds(r.NackDelayMs, 0), AckWithResponse: r.AckReceipt, RetryEnable: r.Retry,
		EnableBatchIndexAcknowledgment: r.BatchIndexAck, ReadCompacted: r.ReadCompacted, StartMessageIDInclusive: r.Inclusive,
		AckGroupingOptions: &pulsar.AckGroupingOptions{MaxSize: 1, MaxTime: milliseconds(r.AckGroupMs, time.Millisecond)},
		BackOffPolicyFunc:  newShortBackoff, EventListener: made, Schema: schemaOf(r.Schema),
	}
	if r.Position == "Earliest" {
		options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
	}
	if r.Mode == "NonDurable" {
		options.SubscriptionMode = pulsar.NonDurable
	}
	if r.Queue != nil {
		options.ReceiverQueueSize, options.EnableZeroQueueConsumer = *r.Queue, *r.Queue == 0
	}
	addPolicies(r, &options)
	consumer, err := find[pulsar.Client](r).Subscribe(options)
	if err != nil {
		return nil, err
	}
	made.consumer = consumer
	return object{"handle": keep(made), "name": consumer.Name()}, nil
}

func addPolicies(r *request, options *pulsar.ConsumerOptions) {
	if policy := r.DeadLetter; policy != nil {
		options.DLQ = &pulsar.DLQPolicy{
			MaxDeliveries: policy.MaxRedeliver + 1, DeadLetterTopic: policy.Topic, RetryLetterTopic: policy.RetryTopic,
			InitialSubscriptionName: policy.InitialSubscription,
			ProducerOptions:         pulsar.ProducerOptions{BackOffPolicyFunc: newShortBackoff},
		}
	}
	if len(r.StickyRanges) > 0 {
		options.KeySharedPolicy = &pulsar.KeySharedPolicy{Mode: pulsar.KeySharedPolicyModeSticky, HashRanges: r.StickyRanges}
	} else if r.OutOfOrder {
		options.KeySharedPolicy = &pulsar.KeySharedPolicy{Mode: pulsar.KeySharedPolicyModeAutoSplit, AllowOutOfOrderDelivery: true}
	}
	if r.Keys != nil {
		options.Decryption = &pulsar.MessageDecryptionInfo{KeyReader: r.Keys}
	}
}

// receive gives up to "count" messages; fewer when "timeout_ms" has passed before.
func receive(r *request) (any, error) {
	from := find[*received](r)
	context_, cancel := context.WithTimeout(context.Background(), milliseconds(r.TimeoutMs, 0))
	defer cancel()
	messages := []object{}
	for len(messages) < max(r.Count, 1) {
		message, err := from.consumer.Receive(context_)
		if errors.Is(err, context.DeadlineExceeded) {
			break
		} else if err != nil {
			return nil, err
		}
		if r.Ack {
			if err := from.consumer.Ack(message); err != nil {
				slog.Warn("not acknowledged: the message comes again", "error", err)
				continue
			}
		}
		described, err := from.describe(r, message)
		if err != nil {
			return nil, err
		}
		messages = append(messages, described)
	}
	return messages, nil
}

func acknowledge(r *request) (any, error) {
	from := find[*received](r)
	if r.Transaction != 0 { // what a transaction acknowledges may be acknowledged again
		return nil, acknowledgeWithin(from, from.look(r.Handles), transactionOf(r))
	}
	messages := from.take(r.Handles)
	if len(messages) == 1 {
		return nil, from.consumer.Ack(messages[0])
	}
	var ids []pulsar.MessageID
	for _, message := range messages {
		ids = append(ids, message.ID())
	}
	return nil, from.consumer.AckIDList(ids)
}
