package example.palisade;

import example.palisade.internal.Json;
import java.io.IOException;
import java.io.InputStream;
import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpConnectTimeoutException;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.ByteBuffer;
import java.nio.channels.UnresolvedAddressException;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Flow;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLHandshakeException;

/** Makes attempts, at the address that leads. */
final class Transport {
    /** An attempt with less time than this would only turn "nothing happened" into "unknown". */
    static final long LEAST_TIME = 50 * Clock.MILLISECOND;

    /** A request has a nonce of its own in this header, and its answer has the same one. */
    private static final String NONCE = "Palisade-Nonce";

    private static final SecureRandom RANDOM = new SecureRandom();
    private static final Duration CONNECT_TIMEOUT = Duration.ofSeconds(5);
    static final long FIRST_PAUSE = 10 * Clock.MILLISECOND;
    private static final long LONGEST_PAUSE = 500 * Clock.MILLISECOND;

    final Endpoints endpoints;
    private final Bearer bearer;
    private final SSLContext tls;
    private final ExecutorService threads;
    private volatile HttpClient http;

    /** A request that can be sent again as it is; {@code body} is null for GET. */
    record Request(String method, String path, String body, boolean mayWait, Differs differs) {
        static Request post(String path, Map<String, ?> body, Differs differs) {
            return new Request("POST", path, Json.write(body), false, differs);
        }

        static Request get(String path, Differs differs) {
            return new Request("GET", path, null, false, differs);
        }
    }

    /** Tells why an answer belongs to another request; null if it may be that of this one. */
    @FunctionalInterface
    interface Differs {
        String why(Reply answer);

        /** A good answer has these fields. */
        static Differs unless(Map<String, ?> wanted) {
            return answer -> answer.status() == 200 ? answer.difference(wanted) : null;
        }
    }

    /** An address's answer. {@code follow}: ask the leader that it names at once. */
    record Attempt(Reply reply, boolean follow) {}

    /** Waits until an instant; ends early, with an exception, if the caller gave up. */
    @FunctionalInterface
    interface Pause {
        void until(long instant) throws InterruptedException;
    }

    Transport(Endpoints endpoints, Bearer bearer, SSLContext tls, ExecutorService threads) {
        this.endpoints = endpoints;
        this.bearer = bearer;
        this.tls = tls;
        this.threads = threads;
        this.http = newHttp();
    }

    private HttpClient newHttp() {
        HttpClient.Builder builder = HttpClient.newBuilder()
                // A request that gets no answer in time ends its connection. With HTTP/2 others would share it.
                .version(HttpClient.Version.HTTP_1_1)
                // A redirect would carry the lease key elsewhere.
                .followRedirects(HttpClient.Redirect.NEVER)
                // A proxy of the system would keep connections and time-outs of its own.
                .proxy(HttpClient.Builder.NO_PROXY)
                .connectTimeout(CONNECT_TIMEOUT)
                .executor(threads);
        if (tls != null) {
            builder.sslContext(tls);
        }
        return builder.build();
    }

    /** Makes one attempt, which ends at the latest after that time. Follows a leader at once. */
    Reply send(Request request, long limit) throws Reply.Fault, InterruptedException {
        long until = Clock.earliest() + limit;
        while (true) {
            Attempt attempt = attempt(endpoints.current(), request, until);
            if (!attempt.follow() || Clock.earliest() + LEAST_TIME >= until) {
                return attempt.reply();
            }
        }
    }

    /**
     * How long one attempt may take: the time that the server is asked to wait, and half of the rest, at most half of the
     * patience. The other half is for the next address, or another connection.
     */
    static long attemptTime(long asked, long left, long patience) {
        return Math.max(asked + Math.min(patience, left - asked) / 2, LEAST_TIME);
    }

    /** Asks one address. */
    Attempt attempt(String address, Request request, long until) throws Reply.Fault, InterruptedException {
        HttpClient used = http;
        HttpResponse<String> answer = exchange(
                used, address, request, Math.max(until - Clock.earliest(), Clock.MILLISECOND), BodyHandlers.ofString());
        try {
            Reply reply = Reply.read(answer.statusCode(), answer.body());
            if (reply.waits() && !request.mayWait()) {
                throw Reply.broken("it says that a request waits, which did not ask to wait");
            }
            String why = request.differs().why(reply);
            if (why != null) {
                throw Reply.broken("it is that of another request: " + why);
            }
            return new Attempt(reply, endpoints.answered(address, reply));
        } catch (Reply.Fault broken) {
            endpoints.failed(address);
            replace(used);
            throw new Reply.Fault(address + ": " + broken.getMessage(), true);
        }
    }

    /** Opens a stream; its head comes within that time. */
    HttpResponse<InputStream> open(String address, Request request, long limit)
            throws Reply.Fault, InterruptedException {
        return exchange(http, address, request, limit, BodyHandlers.ofInputStream());
    }

    /**
     * Sends a request. If a server does not know the caller, the certificate of the connection may have expired: then nothing
     * happened, and a new connection uses the current files.
     */
    private <T> HttpResponse<T> exchange(
            HttpClient used, String address, Request request, long limit, HttpResponse.BodyHandler<T> handler)
            throws Reply.Fault, InterruptedException {
        long until = Clock.earliest() + limit;
        HttpResponse<T> answer = exchangeOnce(used, address, request, limit, handler);
        if (answer.statusCode() != 401 || !address.startsWith("https:")) {
            return answer;
        }
        if (answer.body() instanceof InputStream unread) {
            try {
                unread.close();
            } catch (IOException over) {
                // It is closed all the same.
            }
        }
        replace(used);
        return exchangeOnce(http, address, request, Math.max(until - Clock.earliest(), Clock.MILLISECOND), handler);
    }

    private <T> HttpResponse<T> exchangeOnce(
            HttpClient used, String address, Request request, long limit, HttpResponse.BodyHandler<T> handler)
            throws Reply.Fault, InterruptedException {
        String nonce = nonce();
        CompletableFuture<HttpResponse<T>> coming;
        try {
            coming = used.sendAsync(built(address, request, nonce), ofRequest(nonce, handler));
        } catch (RejectedExecutionException over) {
            throw PalisadeException.invalid("the client is closed");
        }
        try {
            return coming.get(limit, TimeUnit.NANOSECONDS);
        } catch (InterruptedException gone) {
            coming.cancel(true);
            throw gone;
        } catch (TimeoutException error) {
            coming.cancel(true);
            endpoints.failed(address);
            replace(used);
            throw new Reply.Fault(address + " did not answer in time" + ended(address), true);
        } catch (ExecutionException error) {
            endpoints.failed(address);
            Throwable cause = error.getCause();
            if (cause instanceof Stray) {
                replace(used);
            }
            boolean nothing = cause instanceof ConnectException || cause instanceof HttpConnectTimeoutException
                    || cause instanceof UnresolvedAddressException || cause instanceof SSLHandshakeException;
            String why = cause instanceof IOException && cause.getMessage() != null ? cause.getMessage() : cause.toString();
            throw new Reply.Fault(address + ": " + why + (nothing ? advice(address) : "") + ended(address), !nothing);
        }
    }

    /** An answer that does not have the nonce of its request. */
    private static final class Stray extends IOException {
        private static final long serialVersionUID = 1;

        Stray(int status) {
            super("the answer (status " + status + ") is not that of this request: perhaps a program in between sent it");
        }
    }

    private static String nonce() {
        byte[] bits = new byte[16];
        RANDOM.nextBytes(bits);
        return Base64.getUrlEncoder().withoutPadding().encodeToString(bits);
    }

    /** Reads only the answer with this nonce. That of another request ends its connection. */
    private static <T> HttpResponse.BodyHandler<T> ofRequest(String nonce, HttpResponse.BodyHandler<T> handler) {
        return head -> List.of(nonce).equals(head.headers().allValues(NONCE))
                ? handler.apply(head) : new Refusing<>(new Stray(head.statusCode()));
    }

    /** Takes nothing of a body: then its connection is closed. */
    private record Refusing<T>(CompletableFuture<T> body) implements HttpResponse.BodySubscriber<T> {
        Refusing(Stray stray) {
            this(CompletableFuture.failedFuture(stray));
        }

        @Override
        public CompletionStage<T> getBody() {
            return body;
        }

        @Override
        public void onSubscribe(Flow.Subscription subscription) {
            subscription.cancel();
        }

        @Override
        public void onNext(List<ByteBuffer> part) {}

        @Override
        public void onError(Throwable error) {}

        @Override
        public void onComplete() {}
    }

    private String ended(String address) {
        return address.startsWith("https:") ? Certificates.ended(tls) : "";
    }

    private static String advice(String address) {
        String server = address.startsWith("https:") ? "a server with TLS" : "a server";
        return ". Is " + server + " running there? If not, start one with `palisade serve`, or name another address"
                + " (PALISADE_URL)";
    }

    private HttpRequest built(String address, Request request, String nonce) {
        HttpRequest.Builder builder = HttpRequest.newBuilder(URI.create(address + request.path())).header(NONCE, nonce);
        String token = bearer.current();
        if (token != null) {
            builder.header("Authorization", "Bearer " + token);
        }
        if (request.body() == null) {
            return builder.GET().build();
        }
        return builder.header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(request.body()))
                .build();
    }

    /** Other connections may be as silent, or as wrong, and look alive: the next attempt has none of them. */
    private synchronized void replace(HttpClient silent) {
        if (http == silent) {
            http = newHttp();
        }
    }

    /** Sends a request that may be sent again as it is, until there is an answer that repeating does not change. */
    Reply repeat(Request request, long until, Pause pause) throws InterruptedException {
        Backoff backoff = new Backoff(until, pause);
        while (true) {
            try {
                long left = until - Clock.earliest();
                Reply reply = send(request, attemptTime(0, left, left));
                reply.checkFault();
                return reply;
            } catch (Reply.Fault fault) {
                backoff.after(fault);
            }
        }
    }

    /** Pauses between attempts, doubling from 10 ms to half a second. */
    static final class Backoff {
        private final long until;
        private final Pause pause;
        private long next = FIRST_PAUSE;
        private Reply.Fault worst;

        Backoff(long until, Pause pause) {
            this.until = until;
            this.pause = pause;
        }

        /** Waits after a failed attempt; throws the worst fault so far if no time is left. */
        void after(Reply.Fault fault) throws InterruptedException {
            if (worst == null || !worst.unknown) {
                worst = fault;
            }
            long end = Clock.earliest() + next;
            if (end + LEAST_TIME >= until) {
                throw worst.unknown
                        ? new PalisadeException(
                                PalisadeException.Kind.UNKNOWN_OUTCOME, "unknown_outcome", worst.getMessage())
                        : new PalisadeException(PalisadeException.Kind.UNAVAILABLE, "unavailable", worst.getMessage());
            }
            next = Math.min(2 * next, LONGEST_PAUSE);
            pause.until(end);
        }
    }
}
