package magnetar;

import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaType;

/** A schema that is announced to the broker; values stay the bytes that the test gives. */
record RawSchema(SchemaInfo info) implements Schema<byte[]> {
    /** The request's schema, or plain bytes without one. */
    static Schema<byte[]> of(Request request) {
        if (!request.has("schema")) {
            return Schema.BYTES;
        }
        Request wanted = request.nested("schema");
        return new RawSchema(
            SchemaInfo.builder().name("test").type(SchemaType.valueOf(wanted.text("type"))).schema(wanted.bytes("definition")).build());
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
