package example.palisade;

import example.palisade.internal.Exchange;
import example.palisade.internal.Json;
import java.io.InputStream;
import java.util.Map;

/** Makes attempts, at the address that leads. */
final class Transport {
    /** An attempt with less time than this would only turn "nothing happened" into "unknown". */
    static final long LEAST_TIME = 50 * Clock.MILLISECOND;

    static final long FIRST_PAUSE = 10 * Clock.MILLISECOND;
    private static final long LONGEST_PAUSE = 500 * Clock.MILLISECOND;

    final Endpoints endpoints;
    private final Exchange exchange;

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

    Transport(Endpoints endpoints, Exchange exchange) {
        this.endpoints = endpoints;
        this.exchange = exchange;
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
        long limit = Math.max(until - Clock.earliest(), Clock.MILLISECOND);
        Exchange.Answer<String> answer;
        try {
            answer = exchange.ask(address, request.method(), request.path(), request.body(), limit);
        } catch (Exchange.Silence silence) {
            throw fault(address, silence);
        }
        try {
            Reply reply = Reply.read(answer.status(), answer.body());
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
            exchange.leave(answer.via());
            throw new Reply.Fault(address + ": " + broken.getMessage(), true);
        }
    }

    /** Opens a stream; its head comes within that time. */
    Exchange.Answer<InputStream> open(String address, Request request, long limit) throws Reply.Fault, InterruptedException {
        try {
            return exchange.open(address, request.path(), limit);
        } catch (Exchange.Silence silence) {
            throw fault(address, silence);
        }
    }

    private Reply.Fault fault(String address, Exchange.Silence silence) {
        endpoints.failed(address);
        return new Reply.Fault(silence.getMessage(), !silence.nothing(), silence.late());
    }

    /** Sends a request that may be sent again as it is, until there is an answer that repeating does not change. */
    Reply repeat(Request request, long until, Pause pause) throws InterruptedException {
        return repeatTimed(request, until, pause).reply();
    }

    /** An answer, with the clock's reading from before the attempt that it answers. */
    record Timed(long t0, Reply reply) {}

    /** As {@link #repeat}. */
    Timed repeatTimed(Request request, long until, Pause pause) throws InterruptedException {
        Backoff backoff = new Backoff(until, pause);
        while (true) {
            try {
                long t0 = Clock.earliest();
                long left = until - t0;
                Reply reply = send(request, attemptTime(0, left, left));
                reply.checkFault();
                return new Timed(t0, reply);
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

        /**
         * Waits after a failed attempt. If no time is left it throws the worst fault so far: unknown if any of the attempts
         * may have happened, and of those the last one that was more than silence.
         */
        void after(Reply.Fault fault) throws InterruptedException {
            if (worst == null || fault.unknown && !worst.unknown || fault.unknown == worst.unknown && !fault.silent) {
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
