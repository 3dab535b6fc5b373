/** Leases with fencing tokens, and the fences that make the tokens count. */
module example.palisade {
    requires transitive java.net.http;
    requires transitive java.sql;

    exports example.palisade;
    exports example.palisade.attempts;
    exports example.palisade.fence;
    exports example.palisade.testing;
}
