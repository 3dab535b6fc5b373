/**
 * The client of Palisade: leases with fencing tokens.
 *
 * <pre>{@code
 * try (Client client = Client.builder().build();
 *         Lease lease = client.lock("orders").ttl(Duration.ofSeconds(10)).acquire()) {
 *     lease.check();
 *     PostgresFence.claim(connection, "orders", lease);
 * }
 * }</pre>
 *
 * <p>No lock service can stop two processes from both believing they hold a lock. The lease saves work; the fence keeps
 * data safe: give the lease to a fence, and claim before the first read.
 */
package example.palisade;
