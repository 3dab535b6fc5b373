/**
 * Redis with `ioredis`: the same as `palisade-client/fence/redis`, which takes the connections of both packages.
 *
 * @packageDocumentation
 */
export * from "./redis.js";
