package magnetar;

import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaType;

/** A schema that is announced to the broker; values stay the bytes that the test gives. */
record RawSchema(SchemaInfo info) implements Schema<byte[]> {
    /** The request's schema, or plain bytes without one. */
    static Schema<byte[]> of(Request request) {
        return request.has("schema") ? new RawSchema(wanted(request)) : Schema.BYTES;
    }

    /** As `of`, for one that reads: with a definition, or any, it can decode what it reads. */
    static Schema<?> reading(Request request) {
        if (!request.has("schema")) {
            return Schema.BYTES;
        }
        SchemaInfo info = wanted(request);
        return switch (info.getType()) {
            case AUTO_CONSUME -> Schema.AUTO_CONSUME();
            case AVRO, JSON -> Schema.generic(info);
            default -> new RawSchema(info);
        };
    }

    private static SchemaInfo wanted(Request request) {
        Request schema = request.nested("schema");
        return SchemaInfo.builder().name("test").type(SchemaType.valueOf(schema.text("type"))).schema(schema.bytes("definition"))
            .build();
    }

    @Override
    public byte[] encode(byte[] value) {
        return value;
    }

    @Override
    public byte[] decode(byte[] bytes) {
        return bytes;
    }

    @Override
    public SchemaInfo getSchemaInfo() {
        return info;
    }

    @Override
    public Schema<byte[]> clone() {
        return this;
    }
}
