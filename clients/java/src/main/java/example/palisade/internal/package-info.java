/** Internal: nothing here is for users of the client. */
package example.palisade.internal;
