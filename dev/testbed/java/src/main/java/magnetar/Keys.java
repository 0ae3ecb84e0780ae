package magnetar;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.EncryptionKeyInfo;

/** A pair of keys in memory. */
record Keys(String publicKey, String privateKey) implements CryptoKeyReader {
    static Keys of(Request request) {
        return new Keys(request.text("public"), request.text("private"));
    }

    @Override
    public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
        return new EncryptionKeyInfo(publicKey.getBytes(StandardCharsets.UTF_8), metadata);
    }

    @Override
    public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
        return new EncryptionKeyInfo(privateKey.getBytes(StandardCharsets.UTF_8), metadata);
    }
}
