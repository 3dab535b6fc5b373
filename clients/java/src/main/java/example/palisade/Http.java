package example.palisade;

import example.palisade.internal.Exchange;
import java.io.IOException;
import java.io.InputStream;
import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpConnectTimeoutException;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.net.http.HttpTimeoutException;
import java.nio.ByteBuffer;
import java.nio.channels.UnresolvedAddressException;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.Base64;
import java.util.List;
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

/** Asks over HTTP. */
final class Http implements Exchange {
    /** A request has a nonce of its own in this header, and its answer has the same one. */
    private static final String NONCE = "Palisade-Nonce";

    private static final SecureRandom RANDOM = new SecureRandom();
    private static final Duration CONNECT_TIMEOUT = Duration.ofSeconds(5);

    private final Bearer bearer;
    private final SSLContext tls;
    private final ExecutorService threads;
    private volatile HttpClient http;

    Http(Bearer bearer, SSLContext tls, ExecutorService threads) {
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

    @Override
    public Answer<String> ask(String address, String method, String path, String body, long limit)
            throws Silence, InterruptedException {
        return exchange(address, method, path, body, limit, BodyHandlers.ofString());
    }

    @Override
    public Answer<InputStream> open(String address, String path, long limit) throws Silence, InterruptedException {
        return exchange(address, "GET", path, null, limit, BodyHandlers.ofInputStream());
    }

    /**
     * Sends a request. If a server does not know the caller, the certificate of the connection may have expired: then nothing
     * happened, and a new connection uses the current files.
     */
    private <T> Answer<T> exchange(
            String address, String method, String path, String body, long limit, HttpResponse.BodyHandler<T> handler)
            throws Silence, InterruptedException {
        long until = Clock.earliest() + limit;
        Answer<T> answer = exchangeOnce(address, method, path, body, limit, handler);
        if (answer.status() != 401 || !address.startsWith("https:")) {
            return answer;
        }
        if (answer.body() instanceof InputStream unread) {
            try {
                unread.close();
            } catch (IOException over) {
                // It is closed all the same.
            }
        }
        leave(answer.via());
        return exchangeOnce(address, method, path, body, Math.max(until - Clock.earliest(), Clock.MILLISECOND), handler);
    }

    private <T> Answer<T> exchangeOnce(
            String address, String method, String path, String body, long limit, HttpResponse.BodyHandler<T> handler)
            throws Silence, InterruptedException {
        HttpClient used = http;
        String nonce = nonce();
        Sending sending = body == null ? null : new Sending(body);
        CompletableFuture<HttpResponse<T>> coming;
        try {
            coming = used.sendAsync(built(address, method, path, sending, nonce), ofRequest(nonce, handler));
        } catch (RejectedExecutionException over) {
            throw PalisadeException.invalid("the client is closed");
        }
        try {
            HttpResponse<T> answer = coming.get(limit, TimeUnit.NANOSECONDS);
            return new Answer<>(answer.statusCode(), answer.body(), used);
        } catch (InterruptedException gone) {
            coming.cancel(true);
            throw gone;
        } catch (TimeoutException error) {
            coming.cancel(true);
            leave(used);
            boolean nothing = sending != null && sending.revoke();
            String why = " did not answer in time" + (nothing ? advice(address) : "");
            throw new Silence(address + why + ended(address), nothing, true);
        } catch (ExecutionException error) {
            Throwable cause = error.getCause();
            if (cause instanceof Stray) {
                leave(used);
            }
            boolean nothing = cause instanceof ConnectException || cause instanceof HttpConnectTimeoutException
                    || cause instanceof UnresolvedAddressException || cause instanceof SSLHandshakeException
                    || sending != null && sending.revoke();
            String why = cause instanceof IOException && cause.getMessage() != null ? cause.getMessage() : cause.toString();
            boolean late = cause instanceof HttpTimeoutException;
            throw new Silence(address + ": " + why + (nothing ? advice(address) : "") + ended(address), nothing, late);
        }
    }

    /** The body of a request. Until it is asked for, no server has the whole request. */
    private static final class Sending implements HttpRequest.BodyPublisher {
        private final HttpRequest.BodyPublisher body;
        /** Null until it is decided. */
        private Boolean begun;

        Sending(String text) {
            this.body = HttpRequest.BodyPublishers.ofString(text);
        }

        private synchronized boolean begin() {
            if (begun == null) {
                begun = true;
            }
            return begun;
        }

        /** Whether nothing was sent; then nothing will be. */
        synchronized boolean revoke() {
            if (begun == null) {
                begun = false;
            }
            return !begun;
        }

        @Override
        public long contentLength() {
            return body.contentLength();
        }

        @Override
        public void subscribe(Flow.Subscriber<? super ByteBuffer> subscriber) {
            if (begin()) {
                body.subscribe(subscriber);
                return;
            }
            subscriber.onSubscribe(new Nothing());
            subscriber.onError(new IOException("the request was given up before it was sent"));
        }
    }

    private static final class Nothing implements Flow.Subscription {
        @Override
        public void request(long count) {}

        @Override
        public void cancel() {}
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

    private HttpRequest built(String address, String method, String path, Sending body, String nonce) {
        HttpRequest.Builder builder = HttpRequest.newBuilder(URI.create(address + path)).header(NONCE, nonce);
        String token = bearer.current();
        if (token != null) {
            builder.header("Authorization", "Bearer " + token);
        }
        if (body == null) {
            return builder.GET().build();
        }
        return builder.header("Content-Type", "application/json")
                .method(method, body)
                .build();
    }

    /** Other connections may be as silent, or as wrong, and look alive: the next attempt has none of them. */
    @Override
    public synchronized void leave(Object via) {
        if (http == via) {
            http = newHttp();
        }
    }
}
