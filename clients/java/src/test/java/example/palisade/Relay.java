package example.palisade;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;

/** Passes bytes on. Connections that are open when it freezes deliver nothing any more, and stay open. */
final class Relay implements AutoCloseable {
    private final URI server;
    private final ServerSocket listener;
    private final List<AtomicBoolean> links = new CopyOnWriteArrayList<>();
    private final CountDownLatch closed = new CountDownLatch(1);

    Relay(String server) throws IOException {
        this.server = URI.create(server);
        listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        start(this::accept);
    }

    String url() {
        return "http://127.0.0.1:" + listener.getLocalPort();
    }

    /** Returns how many connections there are. */
    int freeze() {
        links.forEach(frozen -> frozen.set(true));
        return links.size();
    }

    @Override
    public void close() throws IOException {
        closed.countDown();
        listener.close();
    }

    private interface Work {
        void run() throws IOException, InterruptedException;
    }

    private static void start(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (IOException | InterruptedException ended) {
                // A connection, or the test, is over.
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private void accept() throws IOException {
        while (true) {
            Socket near = listener.accept();
            Socket far = new Socket(server.getHost(), server.getPort());
            near.setTcpNoDelay(true);
            far.setTcpNoDelay(true);
            AtomicBoolean frozen = new AtomicBoolean();
            links.add(frozen);
            start(() -> pump(frozen, near, far));
            start(() -> pump(frozen, far, near));
        }
    }

    private void pump(AtomicBoolean frozen, Socket from, Socket to) throws IOException, InterruptedException {
        try (from; to) {
            byte[] buffer = new byte[32_768];
            for (int length = from.getInputStream().read(buffer); length >= 0; length = from.getInputStream().read(buffer)) {
                if (frozen.get()) {
                    closed.await();
                }
                to.getOutputStream().write(buffer, 0, length);
            }
        }
    }
}
