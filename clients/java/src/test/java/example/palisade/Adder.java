package example.palisade;

import example.palisade.fence.HttpFence;
import example.palisade.fence.PostgresFence;
import example.palisade.fence.Presenter;
import example.palisade.fence.RejectedException;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;

/**
 * A holder's work in Java, for proof/fleet: it reads and writes one number, in two steps, under a fence or without one.
 * It speaks as crates/palisade-fence/examples/adder.rs: {@code adder postgres|http URL RESOURCE fenced|unfenced}, then
 * lines: "read TOKEN", "write TOKEN NUMBER".
 */
public final class Adder {
    private Adder() {}

    private interface Store {
        long read(Presenter holder) throws Exception;

        void write(Presenter holder, long number) throws Exception;
    }

    /** Answers lines until the end of the input. */
    public static void main(String[] arguments) throws Exception {
        boolean fenced = arguments[3].equals("fenced");
        Store store = arguments[0].equals("postgres")
                ? new Postgres(arguments[1], arguments[2], fenced)
                : new Http(URI.create(arguments[1] + "/" + arguments[2]), fenced);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = lines.readLine()) != null) {
            String[] words = line.split(" ");
            Presenter holder = Presenter.of(Long.parseLong(words[1]));
            try {
                if (words[0].equals("read")) {
                    System.out.println(store.read(holder));
                } else {
                    store.write(holder, Long.parseLong(words[2]));
                    System.out.println("written");
                }
            } catch (RejectedException rejected) {
                System.out.println("rejected " + rejected.code());
            }
            System.out.flush();
        }
    }

    private static final class Postgres implements Store {
        private final Connection connection;
        private final String name;
        private final boolean fenced;

        Postgres(String url, String name, boolean fenced) throws SQLException {
            URI at = URI.create(url);
            connection = DriverManager.getConnection(
                    "jdbc:postgresql://127.0.0.1:" + at.getPort() + at.getPath() + "?user=" + at.getUserInfo());
            connection.setAutoCommit(false);
            this.name = name;
            this.fenced = fenced;
        }

        @Override
        public long read(Presenter holder) throws SQLException {
            return transact(holder, "SELECT total FROM totals WHERE name = ?", name);
        }

        @Override
        public void write(Presenter holder, long number) throws SQLException {
            transact(holder, "UPDATE totals SET total = ? WHERE name = ?", number, name);
        }

        private long transact(Presenter holder, String sql, Object... values) throws SQLException {
            try (PreparedStatement statement = connection.prepareStatement(sql)) {
                if (fenced) {
                    PostgresFence.claim(connection, name, holder);
                }
                for (int at = 0; at < values.length; at++) {
                    statement.setObject(at + 1, values[at]);
                }
                long found = 0;
                if (statement.execute()) {
                    try (ResultSet rows = statement.getResultSet()) {
                        rows.next();
                        found = rows.getLong(1);
                    }
                }
                connection.commit();
                return found;
            } catch (RejectedException rejected) {
                connection.rollback();
                throw rejected;
            }
        }
    }

    private record Http(URI at, boolean fenced) implements Store {
        private static final HttpClient CLIENT = HttpClient.newHttpClient();

        @Override
        public long read(Presenter holder) throws Exception {
            if (fenced) {
                send(HttpFence.claim(HttpRequest.newBuilder(at).POST(BodyPublishers.noBody()), holder));
            }
            return Long.parseLong(send(signed(HttpRequest.newBuilder(at).GET(), holder)));
        }

        @Override
        public void write(Presenter holder, long number) throws Exception {
            send(signed(HttpRequest.newBuilder(at).PUT(BodyPublishers.ofString(Long.toString(number))), holder));
        }

        private HttpRequest.Builder signed(HttpRequest.Builder request, Presenter holder) {
            return fenced ? HttpFence.sign(request, holder) : request;
        }

        private static String send(HttpRequest.Builder request) throws Exception {
            HttpResponse<String> answer = CLIENT.send(request.build(), HttpResponse.BodyHandlers.ofString());
            HttpFence.check(answer.statusCode(), answer.body());
            if (answer.statusCode() >= 300) {
                throw new IllegalStateException(answer.statusCode() + ": " + answer.body());
            }
            return answer.body();
        }
    }
}
