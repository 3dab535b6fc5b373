/**
 * Palisade in Spring: {@link example.palisade.spring.PalisadeDataSource} claims in every transaction of a thread with a bound lease,
 * and {@link example.palisade.spring.PalisadeLockRegistry} has the locks of Spring Integration.
 */
package example.palisade.spring;
