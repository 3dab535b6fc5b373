/**
 * Redis with `ioredis`: the same as `palisade/fence/redis`, which takes the connections of both packages.
 *
 * @packageDocumentation
 */
export * from "./redis.js";
