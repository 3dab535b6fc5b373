/** The attempts of a job table as fencing tokens, without a lock server: {@link example.palisade.attempts.Attempts}. */
package example.palisade.attempts;
