package example.palisade;

import example.palisade.attempts.Attempt;
import example.palisade.attempts.Attempts;
import example.palisade.fence.RejectedException;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;

/**
 * A process that a test stops in the middle of a job: {@code Worker JDBC-URL TABLE guarded|bare}. It takes a job, computes, prints
 * a line, waits for one, and writes.
 */
public final class Worker {
    private Worker() {}

    /** Prints "computed", then "written" or the code of the refusal. */
    public static void main(String[] arguments) throws Exception {
        Attempts jobs = Attempts.of(arguments[1]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (Connection connection = DriverManager.getConnection(arguments[0])) {
            Attempt attempt = jobs.take(connection, "w1").orElseThrow();
            int total = total(connection, arguments[1]) + 10;
            System.out.println("computed");
            lines.readLine();
            try {
                if (arguments[2].equals("guarded")) {
                    jobs.transact(connection, attempt, inside -> write(inside, arguments[1], total));
                } else {
                    write(connection, arguments[1], total);
                }
                System.out.println("written");
            } catch (RejectedException rejected) {
                System.out.println(rejected.code());
            }
        }
    }

    static int total(Connection connection, String table) throws SQLException {
        try (Statement statement = connection.createStatement();
                ResultSet rows = statement.executeQuery("SELECT total FROM " + table + "_total")) {
            rows.next();
            return rows.getInt(1);
        }
    }

    static Void write(Connection connection, String table, int total) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.executeUpdate("UPDATE " + table + "_total SET total = " + total);
            return null;
        }
    }
}
