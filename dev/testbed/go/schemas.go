package main

import (
	"encoding/binary"

	"github.com/apache/pulsar-client-go/pulsar"
)

// schemaFields is a schema that is announced to the broker; payloads stay the bytes that the test gives.
type schemaFields struct {
	Type       string `json:"type"`
	Definition []byte `json:"definition"`
}

var schemaTypes = map[string]pulsar.SchemaType{
	"STRING": pulsar.STRING, "JSON": pulsar.JSON, "AVRO": pulsar.AVRO, "INT64": pulsar.INT64, "PROTOBUF_NATIVE": pulsar.ProtoNative,
}

// rawSchema passes bytes through.
type rawSchema struct {
	info pulsar.SchemaInfo
}

// schemaOf is the request's schema, nil (plain bytes) without one.
func schemaOf(fields *schemaFields) pulsar.Schema {
	if fields == nil {
		return nil
	}
	return &rawSchema{pulsar.SchemaInfo{Name: "test", Schema: string(fields.Definition), Type: schemaTypes[fields.Type]}}
}

func (s *rawSchema) Encode(value interface{}) ([]byte, error) { return value.([]byte), nil }

func (s *rawSchema) Decode(data []byte, into interface{}) error {
	*into.(*[]byte) = data
	return nil
}

func (s *rawSchema) Validate(_ []byte) error { return nil }

func (s *rawSchema) GetSchemaInfo() *pulsar.SchemaInfo { return &s.info }

// versionOf is the version of the schema that a message was written with, nil without one.
func versionOf(message pulsar.Message) any {
	version := message.SchemaVersion()
	if len(version) == 0 {
		return nil
	}
	return binary.BigEndian.Uint64(version)
}
