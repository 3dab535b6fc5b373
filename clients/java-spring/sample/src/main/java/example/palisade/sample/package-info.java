/** A shop on Spring Boot: a nightly job, which runs once, and a leader. */
package example.palisade.sample;
