package example.palisade.fence;

import example.palisade.internal.Json;
import java.net.URI;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * HTTP: headers for an API behind {@code palisade gateway}, or a service with Palisade's tower layer.
 *
 * <pre>{@code
 * HttpRequest put = HttpFence.sign(HttpRequest.newBuilder(uri).PUT(order), lease).build();
 * HttpResponse<String> answer = http.send(put, BodyHandlers.ofString());
 * HttpFence.check(answer, lease);  // StaleException: a newer holder has claimed
 * }</pre>
 */
public final class HttpFence {
    private HttpFence() {}

    /** The headers of a read or write, for any HTTP client. */
    public static Map<String, String> headers(Presenter holder) {
        Transaction.checked(holder);
        Map<String, String> headers = new LinkedHashMap<>();
        headers.put("X-Fencing-Token", Long.toString(holder.token()));
        if (holder.authority() != null) {
            headers.put("X-Fencing-Authority", holder.authority());
        }
        if (holder.name() != null) {
            headers.put("X-Fencing-Lock", holder.name());
        }
        return headers;
    }

    /** Adds the headers to a request. */
    public static HttpRequest.Builder sign(HttpRequest.Builder request, Presenter holder) {
        headers(holder).forEach(request::setHeader);
        return request;
    }

    /** As {@link #sign}, with the number of this write among those of the grant: then it is safe to repeat. */
    public static HttpRequest.Builder sign(HttpRequest.Builder request, Presenter holder, long sequence) {
        if (sequence < 0 || sequence > Presenter.MAX_TOKEN) {
            throw new IllegalArgumentException(
                    "the sequence number " + sequence + " is out of range: 0 to " + Presenter.MAX_TOKEN + " are allowed");
        }
        return sign(request, holder).setHeader("X-Fencing-Sequence", Long.toString(sequence));
    }

    /** Makes a request one that raises the fence and does nothing else. */
    public static HttpRequest.Builder claim(HttpRequest.Builder request, Presenter holder) {
        return sign(request, holder).setHeader("X-Fencing-Operation", "claim");
    }

    /**
     * As {@link #check(int, String)}, and tells the holder of a refusal as stale: a lease's authority then shows it in its
     * history, with the host and port as the resource.
     */
    public static void check(HttpResponse<String> answer, Presenter holder) {
        try {
            check(answer.statusCode(), answer.body());
        } catch (StaleException late) {
            HttpRequest asked = answer.request();
            URI uri = asked.uri();
            boolean claims = asked.headers().firstValue("X-Fencing-Operation").orElse("").equals("claim");
            // Not the query, which may contain secrets.
            late.tell(holder, uri.getHost() + (uri.getPort() < 0 ? "" : ":" + uri.getPort()),
                    claims ? "claim" : asked.method() + " " + uri.getRawPath());
            throw late;
        }
    }

    /**
     * Throws if the fence refused the request. Other answers are the service's own, and are left alone.
     *
     * @throws StaleException if a newer holder has claimed the resource
     * @throws RejectedException if the fence refused it for another reason
     */
    public static void check(int status, String body) {
        if (status < 400) {
            return;
        }
        Map<String, Object> error;
        try {
            error = Json.asObject(Json.object(body).get("error"));
        } catch (IllegalArgumentException notJson) {
            return;
        }
        if (error == null || !(error.get("code") instanceof String code) || !RejectedException.isCode(code)) {
            return;
        }
        Object detail = null;
        for (String name : List.of("highest", "last", "authority", "lock")) {
            detail = detail == null ? error.get(name) : detail;
        }
        throw RejectedException.of(code, detail == null ? "" : detail.toString(), String.valueOf(error.get("message")));
    }
}
