//! A user's own script behind the fence: order, errors, repeats.

use palisade_core::Token;
use palisade_fence::redis::{Resource, Script};
use palisade_fence::{Admitted, Error, Reject, Sequence};
use palisade_testbed::Redis;
use redis::{AsyncCommands as _, Value};

use super::subject::{connect, show};

fn t(number: u64) -> Token {
    Token::new(number).unwrap()
}

fn n(number: u64) -> Sequence {
    Sequence::new(number).unwrap()
}

const ADD: &str = "-- a comment, and KEYS and ARGV of its own
if #KEYS ~= 1 or #ARGV ~= 1 then return redis.error_reply('not mine') end
return redis.call('INCRBY', KEYS[1], ARGV[1]) -- no new line";

#[tokio::test]
async fn it_runs_after_the_check_and_gives_its_value() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    let resource = Resource::new("r").unwrap().guarding(&["{r}:x"]).unwrap();
    let add = Script::new(ADD).unwrap();
    let first: Admitted<u64> = resource
        .write(t(2))
        .run(con, &add, &["{r}:x"], &[b"5"])
        .await
        .unwrap();
    assert_eq!(first.value, 5);
    let late = resource
        .write(t(1))
        .run::<_, u64>(con, &add, &["{r}:x"], &[b"5"])
        .await
        .unwrap_err();
    assert_eq!(
        late.rejected(),
        Some(&Reject::Stale {
            presented: t(1),
            highest: t(2)
        })
    );
    let look = Script::new("return redis.call('GET', KEYS[1])").unwrap();
    let seen: Admitted<u64> = resource
        .read(con, t(3), &look, &["{r}:x"], &[])
        .await
        .unwrap();
    assert_eq!(seen.value, 5);
    assert_eq!(show(con, "r").await.unwrap().unwrap().highest(), Some(t(3)));
}

#[tokio::test]
async fn a_repeated_numbered_run_gets_the_recorded_result() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    let resource = Resource::new("r").unwrap();
    let odd = "redis.call('APPEND', KEYS[1], 'x') \
        return { 9007199254740991, 'b\\0\\255', { ok = 'FINE' }, false, -1 }";
    let odd = Script::new(odd).unwrap();
    let write = resource.write(t(1)).numbered(n(7));
    let first: Admitted<Value> = write.run(con, &odd, &["{r}:x"], &[]).await.unwrap();
    let repeat: Admitted<Value> = write.run(con, &odd, &["{r}:x"], &[]).await.unwrap();
    assert!(repeat.repeat);
    let last = (1_i64 << 53) - 1;
    let parts = vec![
        Value::Int(last),
        Value::BulkString(b"b\0\xff".to_vec()),
        Value::SimpleString("FINE".to_owned()),
        Value::Nil,
        Value::Int(-1),
    ];
    assert_eq!(repeat.value, Value::Array(parts));
    assert_eq!(first.value, repeat.value);
    let length: usize = con.strlen("{r}:x").await.unwrap();
    assert_eq!(length, 1, "the script ran once");
    let other = write.run::<_, Value>(con, &odd, &["{r}:y"], &[]);
    let other = other.await.unwrap_err();
    let reused = Reject::SequenceReused { last: n(7) };
    assert_eq!(other.rejected(), Some(&reused));
    // The result of an unnumbered run in between must not be returned for the numbered one.
    let unit = Script::new("return 'between'").unwrap();
    let between = resource.write(t(1)).run::<_, Value>(con, &unit, &[], &[]);
    between.await.unwrap();
    let again: Admitted<Value> = write.run(con, &odd, &["{r}:x"], &[]).await.unwrap();
    assert_eq!(again.value, repeat.value);
}

#[tokio::test]
async fn a_result_that_is_too_long_is_not_recorded_and_the_run_not_repeated() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    let resource = Resource::new("r").unwrap();
    let long = "redis.call('APPEND', KEYS[1], 'x') return string.rep('x', 70000)";
    let long = Script::new(long).unwrap();
    let write = resource.write(t(1)).numbered(n(0));
    let first: Admitted<Vec<u8>> = write.run(con, &long, &["{r}:x"], &[]).await.unwrap();
    assert_eq!(first.value.len(), 70_000);
    let again: Admitted<Value> = write.run(con, &long, &["{r}:x"], &[]).await.unwrap();
    assert_eq!(again.value, Value::Nil);
    let length: usize = con.strlen("{r}:x").await.unwrap();
    assert_eq!(length, 1);
}

/// Redis rolls nothing back: the mark comes first, so the writes of a failed script are fenced.
#[tokio::test]
async fn a_script_that_fails_leaves_the_raised_fence_and_its_writes() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    for (name, fails) in [
        ("call", "redis.call('LPUSH', KEYS[1], 'wrong type')"),
        ("lua", "error('my own words')"),
        ("reply", "return redis.error_reply('MINE denied')"),
    ] {
        let resource = Resource::new(name).unwrap();
        let key = &*resource.key("x");
        let half = Script::new(&format!("redis.call('APPEND', KEYS[1], 'half') {fails}")).unwrap();
        let write = resource.write(t(2)).numbered(n(1));
        for _ in 0..2 {
            let failed = write.run::<_, Value>(con, &half, &[key], &[]).await;
            let Err(Error::Script(why)) = failed else {
                panic!("{failed:?}");
            };
            let words = ["WRONGTYPE", "my own words", "MINE denied"];
            assert!(words.iter().any(|word| why.contains(word)), "{name}: {why}");
        }
        let left: String = con.get(key).await.unwrap();
        assert_eq!(left, "half", "a repeat runs nothing");
        let late = resource
            .write(t(1))
            .set(con, key, b"late")
            .await
            .unwrap_err();
        assert_eq!(
            late.rejected(),
            Some(&Reject::Stale {
                presented: t(1),
                highest: t(2)
            })
        );
    }
}

#[tokio::test]
async fn a_command_that_fails_leaves_nothing() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    let resource = Resource::new("r").unwrap();
    let write = resource.write(t(1)).numbered(n(1));
    write.set(con, "{r}:x", b"text").await.unwrap();
    let before = show(con, "r").await.unwrap();
    let newer = resource.write(t(5)).numbered(n(9));
    let failed = newer.hset(con, "{r}:x", &[("f", b"v")]).await;
    assert!(matches!(failed, Err(Error::Command(_))), "{failed:?}");
    assert_eq!(show(con, "r").await.unwrap(), before);
    // The number is still free, and the previous one is still known.
    let again = write.set(con, "{r}:x", b"text").await.unwrap();
    assert!(again.repeat);
    let missing = newer.del(con, "{r}:none").await.unwrap_err();
    assert_eq!(missing.rejected(), Some(&Reject::Missing));
    assert_eq!(show(con, "r").await.unwrap(), before);
    newer.set(con, "{r}:x", b"new").await.unwrap();
}

#[tokio::test]
async fn invalid_lua_changes_nothing() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    let resource = Resource::new("r").unwrap();
    let broken = Script::new("this is not Lua").unwrap();
    let failed = resource
        .write(t(1))
        .run::<_, Value>(con, &broken, &[], &[])
        .await;
    assert!(matches!(failed, Err(Error::Failed { .. })), "{failed:?}");
    assert_eq!(show(con, "r").await.unwrap(), None);
    let shebang = Script::new("#!lua flags=no-writes\nreturn 1");
    assert!(matches!(shebang, Err(Error::Argument(_))));
}
