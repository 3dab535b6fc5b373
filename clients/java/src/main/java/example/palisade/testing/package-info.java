/** A double of the server for unit tests: {@link example.palisade.testing.MemoryServer}. */
package example.palisade.testing;
