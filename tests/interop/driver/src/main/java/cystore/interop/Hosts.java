package cystore.interop;

import java.net.Inet6Address;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.UnknownHostException;

/** {@code address:port} and {@code [address]:port}, the text form of hosts in specs and dumps. */
final class Hosts {
    private Hosts() {
    }

    static InetSocketAddress parse(String text) {
        int colon = text.lastIndexOf(':');
        try {
            return new InetSocketAddress(InetAddress.getByName(text.substring(0, colon)),
                Integer.parseInt(text.substring(colon + 1)));
        } catch (UnknownHostException e) {
            throw new IllegalArgumentException("host " + text, e);
        }
    }

    static String format(SocketAddress host) {
        InetSocketAddress socket = (InetSocketAddress) host;
        InetAddress address = socket.getAddress();
        return address instanceof Inet6Address
            ? "[" + address.getHostAddress() + "]:" + socket.getPort()
            : address.getHostAddress() + ":" + socket.getPort();
    }
}
