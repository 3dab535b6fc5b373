/** The refusal of a fence in the errors of drivers and of what people put around them. */
import assert from "node:assert/strict";
import { suite, test } from "node:test";
import { inspect } from "node:util";

import { Rejected, rejection, Stale } from "../src/fence/index.js";
import * as onMysql from "../src/fence/mysql.js";
import * as onPg from "../src/fence/pg.js";
import { Invalid, LeaseLost } from "../src/index.js";

const PG = { code: "PF001", detail: "8", message: "token 7 is stale: 7 < 8 at resource orders" };
const MYSQL = {
  code: "ER_SIGNAL_EXCEPTION",
  errno: 1644,
  sqlState: "PF001",
  sqlMessage: "give up, roll back, write nothing more: token 7 is stale: 7 < 8",
};
const REDIS = { message: "PALISADE stale 8: token 7 is stale: 7 < 8; give up" };
const wrapped = (cause: unknown): Error => new Error("Failed query", { cause });
const around = (error: Error): Error & { cause: unknown } => Object.assign(error, { cause: error });

/** As the versions that frameworks/ names make them. */
const STALE: Readonly<Record<string, unknown>> = {
  pg: PG,
  "pg without its detail": { ...PG, detail: undefined },
  mysql2: MYSQL,
  redis: REDIS,
  "a rejection of ours": new Stale(7, 8),
  drizzle: wrapped(PG),
  "knex with mysql2": { ...MYSQL, message: `update orders - ${MYSQL.sqlMessage}` },
  typeorm: { message: PG.message, driverError: PG },
  "prisma with adapter-pg": {
    code: "P2039",
    meta: { driverAdapterError: wrapped({ originalCode: "PF001", kind: "postgres", ...PG }) },
  },
  "prisma with adapter-mariadb": {
    code: "P2010",
    meta: { driverAdapterError: wrapped({ kind: "mysql", code: 1644, message: MYSQL.sqlMessage, state: "PF001" }) },
  },
  "prisma before 7": { code: "P2010", meta: { code: "PF001", message: `ERROR: ${PG.message}` } },
  "one of several": new AggregateError([new Error("first"), wrapped(MYSQL)]),
  "deep below": wrapped(wrapped(wrapped(wrapped(PG)))),
};

suite("rejection", () => {
  for (const [name, error] of Object.entries(STALE)) {
    test(name, () => {
      for (const found of [rejection(error), onPg.rejection(error), onMysql.rejection(error)]) {
        assert.ok(found instanceof Stale, String(found));
        assert.deepEqual([found.token, found.highest], [7, 8]);
      }
    });
  }

  test("every code of a fence", () => {
    const codes: [string, string, string, Partial<Rejected>][] = [
      ["PF002", "8", "no token; the highest is 8", { code: "tokenless", highest: 8 }],
      ["PF005", "a", "belongs to another authority: a", { code: "wrong_authority", authority: "a" }],
      ["PF006", "l", "belongs to another lock: l", { code: "wrong_lock", lock: "l" }],
      ["PF007", "8 64", "bound 64 above 8", { code: "jump", highest: 8, bound: 64 }],
      ["PF008", "3", "the last is 3", { code: "sequence_stale", last: 3 }],
      ["PF009", "3", "the last is 3", { code: "sequence_reused", last: 3 }],
      ["PF010", "", "written", { code: "already_written" }],
    ];
    for (const [state, detail, message, wanted] of codes) {
      for (const error of [
        { code: state, detail, message },
        { sqlState: state, sqlMessage: message },
      ]) {
        const found = rejection(wrapped(error));
        assert.ok(found !== undefined, state);
        for (const [name, value] of Object.entries(wanted)) {
          assert.equal(found[name as keyof Rejected], value, `${state} ${name}`);
        }
      }
    }
  });

  test("other errors are none", () => {
    const circle = around(new Error("a circle"));
    const others = [undefined, null, 7, "PF001", new Error("PF001"), { code: "23505" }, { sqlState: "40001" }, circle];
    for (const error of [
      ...others,
      new Invalid("PF001"),
      { code: "toString" },
      { sqlState: "constructor" },
      REDIS.message,
    ]) {
      assert.equal(rejection(error), undefined, inspect(error));
    }
  });
});

test("a claim as a statement has nothing that a framework could take for a parameter", () => {
  const holder = { token: 7, authority: "what? $1 'or' :x \\", lock: "bullmq:a/b-1.2~3" };
  const text = onPg.claimStatement("it's ?", { ...holder, remainingMs: 4_500 }, { strict: true, maxJump: null });
  assert.doesNotMatch(text, /[?$\\]|it's/);
  assert.match(
    text,
    /decode\('69742773203f', 'hex'\).* 7::bigint.*'bullmq:a\/b-1\.2~3'::text, true::boolean, NULL::bigint/,
  );
  assert.match(text, /'4500'|4500::text/);
  assert.doesNotMatch(onMysql.claimStatement("it's ?", holder), /[?$\\]|it's/);
  for (const { claimStatement } of [onPg, onMysql]) {
    assert.throws(() => claimStatement("ä", 7), Invalid);
    assert.throws(() => claimStatement("a", 7, { maxjump: 7 } as never), /did you mean maxJump/);
    const check = (): never => {
      throw new LeaseLost("expired", "a", 7);
    };
    assert.throws(() => claimStatement("a", { token: 7, check }), LeaseLost);
  }
});
