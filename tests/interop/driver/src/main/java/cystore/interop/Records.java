package cystore.interop;

import java.nio.ByteBuffer;
import java.util.zip.CRC32;

/** Reads what {@code MessageDecoder} leaves out of a record of the commit log. */
final class Records {
    static final int MAGIC_AT = 4;
    static final int PHYSICAL_OFFSET_AT = 28;
    static final int BLANK_MAGIC = 0xCBD43194;
    private static final int SYS_FLAG_AT = 36;
    private static final int BORN_HOST_AT = 48;
    private static final int BORN_HOST_V6 = 16;
    private static final int STORE_HOST_V6 = 32;

    private Records() {
    }

    static byte[] bytes(ByteBuffer record, int size) {
        byte[] bytes = new byte[size];
        record.duplicate().get(bytes);
        return bytes;
    }

    static long crc32(byte[] record) {
        CRC32 crc = new CRC32();
        crc.update(record);
        return crc.getValue();
    }

    /** The properties exactly as stored, with the last separator where there is one. */
    static byte[] rawProperties(byte[] record) {
        ByteBuffer buffer = ByteBuffer.wrap(record);
        int sysFlag = buffer.getInt(SYS_FLAG_AT);
        int bornHost = (sysFlag & BORN_HOST_V6) == 0 ? 8 : 20;
        int storeHost = (sysFlag & STORE_HOST_V6) == 0 ? 8 : 20;
        buffer.position(BORN_HOST_AT + bornHost + 8 + storeHost + 4 + 8);
        skip(buffer, buffer.getInt());
        skip(buffer, buffer.get());
        byte[] properties = new byte[buffer.getShort()];
        buffer.get(properties);
        return properties;
    }

    private static void skip(ByteBuffer buffer, int count) {
        buffer.position(buffer.position() + count);
    }
}
