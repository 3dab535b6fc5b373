/** Redis has no transaction that stays open: each call of the fence is one. */
import { Resource } from "palisade-client/fence/redis";
import { createClient } from "redis";

export const engines = ["redis"];
export const modes = ["before", "inside", "bare", "page"];

export async function open(url) {
  const redis = await createClient({ url })
    .on("error", () => undefined)
    .connect();
  return {
    native: [redis],
    transaction: (work) => {
      let fenced;
      const key = (name) => `{${name}}:total`;
      return work({
        claim: async (name, holder) => {
          fenced = [redis, holder];
          await new Resource(name).claim(...fenced);
        },
        read: async (name) =>
          Number(await (fenced ? new Resource(name).get(...fenced, key(name)) : redis.get(key(name)))),
        write: (name, total) =>
          fenced ? new Resource(name).set(...fenced, key(name), total) : redis.set(key(name), String(total)),
      });
    },
    close: () => redis.close(),
  };
}
