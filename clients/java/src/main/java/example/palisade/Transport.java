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
import java.nio.channels.UnresolvedAddressException;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLHandshakeException;

/** Makes attempts, at the address that leads. */
final class Transport {
    /** An attempt with less time than this would only turn "nothing happened" into "unknown". */
    static final long LEAST_TIME = 50 * Clock.MILLISECOND;

    private static final Duration CONNECT_TIMEOUT = Duration.ofSeconds(5);
    private static final long FIRST_PAUSE = 10 * Clock.MILLISECOND;
    private static final long LONGEST_PAUSE = 500 * Clock.MILLISECOND;

    final Endpoints endpoints;
    private final Bearer bearer;
    private final SSLContext tls;
    private final ExecutorService threads;
    private volatile HttpClient http;

    /** A request that can be sent again as it is; {@code body} is null for GET. */
    record Request(String method, String path, String body) {
        static Request post(String path, Map<String, ?> body) {
            return new Request("POST", path, Json.write(body));
        }

        static Request get(String path) {
            return new Request("GET", path, null);
        }
    }

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
            String address = endpoints.current();
            HttpResponse<String> answer =
                    exchange(address, request, Math.max(until - Clock.earliest(), Clock.MILLISECOND), BodyHandlers.ofString());
            Reply reply = Reply.read(answer.statusCode(), answer.body());
            if (!endpoints.answered(address, reply) || Clock.earliest() + LEAST_TIME >= until) {
                return reply;
            }
        }
    }

    /** Opens a stream; its head comes within that time. */
    HttpResponse<InputStream> open(String address, Request request, long limit)
            throws Reply.Fault, InterruptedException {
        return exchange(address, request, limit, BodyHandlers.ofInputStream());
    }

    private <T> HttpResponse<T> exchange(
            String address, Request request, long limit, HttpResponse.BodyHandler<T> handler)
            throws Reply.Fault, InterruptedException {
        HttpClient used = http;
        CompletableFuture<HttpResponse<T>> coming = used.sendAsync(built(address, request), handler);
        try {
            return coming.get(limit, TimeUnit.NANOSECONDS);
        } catch (InterruptedException gone) {
            coming.cancel(true);
            throw gone;
        } catch (TimeoutException error) {
            coming.cancel(true);
            endpoints.failed(address);
            replace(used);
            throw new Reply.Fault(address + " did not answer in time", true);
        } catch (ExecutionException error) {
            endpoints.failed(address);
            Throwable cause = error.getCause();
            boolean nothing = cause instanceof ConnectException || cause instanceof HttpConnectTimeoutException
                    || cause instanceof UnresolvedAddressException || cause instanceof SSLHandshakeException;
            String why = cause instanceof IOException && cause.getMessage() != null ? cause.getMessage() : cause.toString();
            throw new Reply.Fault(address + ": " + why + (nothing ? advice(address) : ""), !nothing);
        }
    }

    private static String advice(String address) {
        String server = address.startsWith("https:") ? "a server with TLS" : "a server";
        return ". Is " + server + " running there? If not, start one with `palisade serve`, or name another address"
                + " (PALISADE_URL)";
    }

    private HttpRequest built(String address, Request request) {
        HttpRequest.Builder builder = HttpRequest.newBuilder(URI.create(address + request.path()));
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

    /** Other connections may be as silent, and look alive: the next attempt has none of them. */
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
                // Not all of the time that is left: the next attempt has another connection.
                Reply reply = send(request, Math.max((until - Clock.earliest()) / 2, LEAST_TIME));
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
