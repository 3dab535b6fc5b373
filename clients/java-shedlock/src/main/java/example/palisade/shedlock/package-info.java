/** Palisade as a lock provider of ShedLock: {@link example.palisade.shedlock.PalisadeLockProvider}. */
package example.palisade.shedlock;
