package example.palisade.spring;

import example.palisade.PalisadeException;
import example.palisade.fence.Presenter;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.sql.CallableStatement;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.SortedMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Pattern;

/** A connection of a pool, with what its transaction has claimed. */
final class FencedConnection implements InvocationHandler {
    /** The connections on which this thread has claimed. One whose transaction another thread has ended is removed by the next claim. */
    private static final ThreadLocal<List<FencedConnection>> CLAIMED = ThreadLocal.withInitial(ArrayList::new);

    private static final Pattern READS = Pattern.compile("(?is)\\A(?:SELECT|SHOW|VALUES)\\b[^;]*;?\\s*\\z");
    private static final Pattern INTO = Pattern.compile("(?i)\\bINTO\\b");
    private static final Pattern ENDS = Pattern.compile(
            "(?is)\\A(?:COMMIT|END|ABORT|BEGIN|START|PREPARE\\s+TRANSACTION|ROLLBACK(?!\\s+(?:(?:WORK|TRANSACTION)\\s+)?TO\\b))\\b.*");
    private static final Pattern GOES_ON = Pattern.compile(
            "(?is)\\A(?:SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH|VALUES|SHOW|SAVEPOINT|RELEASE|ROLLBACK)\\b[^;]*;?\\s*\\z");

    private final Connection raw;
    private final PalisadeDataSource source;
    private final Connection proxy;
    /** What the open transaction has claimed. The thread that suspended it is not always the one that ends it. */
    private final Map<String, Presenter> claimed = new ConcurrentHashMap<>();
    /** The open transaction has sent statements. */
    private boolean began;
    /** Why the open transaction can only roll back, or null. */
    private RefusedException refused;
    /** MySQL or MariaDB: what the claim set for the session is not given back yet. */
    private boolean bounded;
    /** A statement may have committed without a word, as MySQL's DDL does: the next one claims again. */
    private boolean repeats;

    private FencedConnection(Connection raw, PalisadeDataSource source) {
        this.raw = raw;
        this.source = source;
        this.proxy = proxy(Connection.class, this);
    }

    static Connection around(Connection raw, PalisadeDataSource source) {
        return new FencedConnection(raw, source).proxy;
    }

    private static <T> T proxy(Class<T> type, InvocationHandler handler) {
        return type.cast(Proxy.newProxyInstance(FencedConnection.class.getClassLoader(), new Class<?>[] {type}, handler));
    }

    private static Object call(Object target, Method method, Object[] arguments) throws Throwable {
        try {
            return method.invoke(target, arguments);
        } catch (InvocationTargetException error) {
            throw error.getCause();
        }
    }

    @Override
    public Object invoke(Object self, Method method, Object[] arguments) throws Throwable {
        switch (method.getName()) {
            case "equals":
                return self == arguments[0];
            case "hashCode":
                return System.identityHashCode(self);
            case "toString":
                return "fenced " + raw;
            case "unwrap":
                // The driver's own connection sends statements past this one.
                before(null);
                return call(raw, method, arguments);
            case "setSavepoint":
                // A claim after the savepoint would be undone with it.
                before(null);
                return call(raw, method, arguments);
            case "commit":
                commit();
                return null;
            case "rollback":
                if (arguments != null) {
                    return call(raw, method, arguments);
                }
                settle(false);
                end(method, null);
                return null;
            case "setAutoCommit":
                setAutoCommit(method, arguments);
                return null;
            case "close":
                settle(false);
                end(method, null);
                return null;
            case "abort":
                end(method, arguments);
                return null;
            case "createStatement":
                return statement(Statement.class, call(raw, method, arguments), null);
            case "prepareStatement":
                return statement(PreparedStatement.class, call(raw, method, arguments), (String) arguments[0]);
            case "prepareCall":
                return statement(CallableStatement.class, call(raw, method, arguments), (String) arguments[0]);
            default:
                return call(raw, method, arguments);
        }
    }

    private void commit() throws SQLException {
        RefusedException why = refused;
        try {
            settle(why == null);
            if (why == null) {
                raw.commit();
            } else {
                raw.rollback();
            }
        } finally {
            forget();
        }
        if (why != null) {
            throw new RefusedException(why.rejection());
        }
    }

    private void setAutoCommit(Method method, Object[] arguments) throws Throwable {
        if (raw.getAutoCommit() == (boolean) arguments[0]) {
            return;
        }
        RefusedException why = refused;
        settle(why == null);
        if (why != null) {
            raw.rollback();
        }
        end(method, arguments);
        if (why != null) {
            // It is a commit, too.
            throw new RefusedException(why.rejection());
        }
    }

    /** Ends the transaction by the fence's procedure: the bound that its claim has set in MariaDB is the session's. */
    private void settle(boolean commits) throws SQLException {
        if (!bounded) {
            return;
        }
        try (Statement statement = raw.createStatement()) {
            statement.execute("CALL palisade_end(" + commits + ")");
            bounded = false;
        } catch (SQLException error) {
            if (commits) {
                throw error;
            }
            // If the connection is broken, the rollback or close that follows tells it.
        }
    }

    /** Ends the transaction. */
    private void end(Method method, Object[] arguments) throws Throwable {
        try {
            call(raw, method, arguments);
        } finally {
            forget();
        }
    }

    private void forget() {
        claimed.clear();
        began = false;
        repeats = false;
        refused = null;
        List<FencedConnection> mine = CLAIMED.get();
        mine.remove(this);
        if (mine.isEmpty()) {
            CLAIMED.remove();
        }
    }

    private <T extends Statement> T statement(Class<T> type, Object made, String prepared) {
        return proxy(type, (self, method, arguments) -> {
            String name = method.getName();
            if (name.equals("equals")) {
                return self == arguments[0];
            }
            if (name.equals("hashCode")) {
                return System.identityHashCode(self);
            }
            if (name.equals("getConnection")) {
                return proxy;
            }
            if (name.equals("unwrap")) {
                before(null);
            }
            if (!name.startsWith("execute")) {
                return call(made, method, arguments);
            }
            // Null for a batch of texts.
            String sent = arguments != null && arguments[0] instanceof String text ? text : prepared;
            String sql = name.endsWith("Batch") ? null : sent;
            checkConcurrency((Statement) made);
            before(sql);
            try {
                return call(made, method, arguments);
            } finally {
                if (sql != null && mayEnd(sql)) {
                    forget();
                } else {
                    repeats |= bounded && (sent == null || !GOES_ON.matcher(withoutComment(sent)).matches());
                }
            }
        });
    }

    /** An updatable result set writes without a statement. */
    private static void checkConcurrency(Statement statement) throws SQLException {
        if (!Fenced.holders().isEmpty() && statement.getResultSetConcurrency() == ResultSet.CONCUR_UPDATABLE) {
            throw RefusedException.of("invalid", "an updatable result set is not fenced: write with an UPDATE statement");
        }
    }

    /** Claims, or throws. Without a statement it may be one that writes. */
    private void before(String sql) throws SQLException {
        if (refused != null) {
            throw new RefusedException(refused.rejection());
        }
        SortedMap<String, Presenter> holders = Fenced.holders();
        boolean alone = raw.getAutoCommit();
        if (holders.isEmpty()) {
            began = !alone;
            return;
        }
        if (alone || raw.isReadOnly()) {
            if (sql == null || !reads(sql)) {
                throw RefusedException.of(alone ? "auto_commit" : "read_only", "a lease is bound to this thread for \""
                        + String.join("\", \"", holders.keySet()) + "\", and this statement may write "
                        + (alone ? "outside of a transaction" : "in a read-only transaction")
                        + ", which does not claim: run it in a transaction that may write (@Transactional, TransactionTemplate)");
            }
            return;
        }
        try {
            for (Map.Entry<String, Presenter> each : holders.entrySet()) {
                claim(each.getKey(), each.getValue());
            }
        } catch (PalisadeException why) {
            refused = new RefusedException(why);
            throw refused;
        } catch (RefusedException why) {
            refused = why;
            throw why;
        }
        began = true;
        repeats = false;
    }

    private void claim(String resource, Presenter holder) throws SQLException {
        Presenter before = claimed.get(resource);
        boolean again = before != null && before.token() == holder.token()
                && Objects.equals(before.authority(), holder.authority()) && Objects.equals(before.name(), holder.name());
        if (again && !repeats) {
            return;
        }
        if (began && !again) {
            throw RefusedException.of("read_before_claim", "this transaction has sent statements before the lease for \"" + resource
                    + "\" was bound, and may have read: bind the lease first, then begin the transaction");
        }
        List<FencedConnection> others = CLAIMED.get();
        others.removeIf(each -> each.claimed.isEmpty());
        if (others.stream().anyMatch(each -> each != this && each.source == source && each.claimed.containsKey(resource))) {
            throw RefusedException.of("already_claimed", "another transaction of this thread is open and has claimed \"" + resource
                    + "\": this one (REQUIRES_NEW, NOT_SUPPORTED) would wait for it for ever. Take part in it (REQUIRED, NESTED), or end it"
                    + " first");
        }
        bounded |= source.setsBounds(raw);
        source.claim(raw, resource, holder);
        claimed.put(resource, holder);
        if (!others.contains(this)) {
            others.add(this);
        }
    }

    /** Without the comments before the first word. One that nests, which not all databases do, or that MySQL carries out, stays. */
    private static String withoutComment(String sql) {
        int at = 0;
        while (at < sql.length()) {
            int end = at + 1;
            if (sql.startsWith("--", at)) {
                end = sql.indexOf('\n', at) + 1;
            } else if (sql.startsWith("/*", at) && !sql.startsWith("/*!", at) && !sql.startsWith("/*M!", at)) {
                end = sql.indexOf("*/", at + 2) + 2;
                if (end > 2 && sql.substring(at + 2, end).contains("/*")) {
                    return sql.substring(at);
                }
            } else if (!Character.isWhitespace(sql.charAt(at)) && sql.charAt(at) != '(') {
                return sql.substring(at);
            }
            if (end <= at) {
                return sql.substring(at);
            }
            at = end;
        }
        return "";
    }

    private static boolean reads(String sql) {
        String text = withoutComment(sql);
        return READS.matcher(text).matches() && !INTO.matcher(text).find();
    }

    /** After it the next statement claims again, which is harmless if the transaction goes on. */
    private static boolean mayEnd(String sql) {
        String text = withoutComment(sql);
        return text.startsWith("/*") || ENDS.matcher(text).matches();
    }
}
