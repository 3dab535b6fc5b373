/** Palisade in Spring: {@link example.palisade.spring.PalisadeDataSource} claims in every transaction of a thread with a bound lease. */
package example.palisade.spring;
