//! The function library as programs in other languages call it.

use palisade_core::Token;
use palisade_fence::redis::{LIBRARY_VERSION, Resource, install, installed, library, uninstall};
use palisade_fence::{Reject, Sequence};
use palisade_testbed::Redis;
use redis::aio::ConnectionManager;
use redis::{AsyncCommands as _, Value, cmd};

use super::subject::connect;

const MARK: &str = "palisade:fence:{orders}";
const TOTAL: &str = "{orders}:total";

/// Calls a function of one key and the mark; an error is its text from the first word on.
async fn call(
    con: &mut ConnectionManager,
    name: &str,
    arguments: &[&str],
) -> Result<Value, String> {
    let mut fcall = cmd("FCALL");
    fcall.arg(name);
    match name {
        "palisade_claim" => fcall.arg(1).arg(MARK),
        _ => fcall.arg(2).arg(MARK).arg(TOTAL),
    };
    let answer = fcall.arg(arguments).query_async(con).await;
    answer.map_err(|error: redis::RedisError| {
        let text = error.to_string();
        let from = text
            .find("PALISADE")
            .or_else(|| text.find(": ").map(|at| at + 2));
        text[from.unwrap_or(0)..].replacen("PALISADE\": ", "PALISADE ", 1)
    })
}

fn text(answer: Result<Value, String>) -> String {
    match answer.unwrap() {
        Value::BulkString(bytes) => String::from_utf8(bytes).unwrap(),
        Value::SimpleString(text) => text,
        Value::Okay => "OK".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::Nil => "nil".to_owned(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_holder_in_any_language_claims_reads_and_writes() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    install(con).await.unwrap();
    assert_eq!(text(call(con, "palisade_claim", &["34"]).await), "34");
    assert_eq!(text(call(con, "palisade_get", &["34"]).await), "nil");
    assert_eq!(text(call(con, "palisade_set", &["34", "41"]).await), "OK");
    assert_eq!(text(call(con, "palisade_incrby", &["34", "1"]).await), "42");
    assert_eq!(text(call(con, "palisade_get", &["35"]).await), "42");
    for (name, arguments, said) in [
        (
            "palisade_claim",
            &["34"][..],
            "PALISADE stale 35: token 34 is stale: 34 < 35; a newer holder has claimed",
        ),
        (
            "palisade_get",
            &["34"],
            "PALISADE stale 35: token 34 is stale: 34 < 35; a newer holder has claimed",
        ),
        (
            "palisade_set",
            &["34", "9"],
            "PALISADE stale 35: token 34 is stale: 34 < 35; a newer holder has claimed",
        ),
        (
            "palisade_del",
            &["34"],
            "PALISADE stale 35: token 34 is stale: 34 < 35; a newer holder has claimed",
        ),
        (
            "palisade_set",
            &["9007199254740991", "9"],
            "PALISADE jump 35: ",
        ),
        ("palisade_claim", &["0"], "PALISADE invalid -: a token"),
        ("palisade_claim", &["036"], "PALISADE invalid -: a token"),
        ("palisade_claim", &["x"], "PALISADE invalid -: a token"),
        (
            "palisade_claim",
            &["9007199254740992"],
            "PALISADE invalid -: a token",
        ),
        (
            "palisade_claim",
            &["36", "a\nb"],
            "PALISADE invalid -: an authority",
        ),
        ("palisade_set", &["36"], "PALISADE invalid -: the arguments"),
        (
            "palisade_set",
            &["36", "1", "", "", "-1"],
            "PALISADE invalid -: a sequence",
        ),
    ] {
        let refused = call(con, name, arguments).await.unwrap_err();
        assert!(refused.starts_with(said), "{name} {arguments:?}: {refused}");
        assert!(!refused.contains("arm"), "{refused}");
    }
    let total: i64 = con.get(TOTAL).await.unwrap();
    assert_eq!(total, 42);
}

#[tokio::test]
async fn numbers_authorities_and_missing_keys_are_as_in_the_rule() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    install(con).await.unwrap();
    let numbered = ["34", "1", "ours", "lock", "7"];
    assert_eq!(text(call(con, "palisade_incrby", &numbered).await), "1");
    assert_eq!(
        text(call(con, "palisade_incrby", &numbered).await),
        "REPEATED"
    );
    for (arguments, said) in [
        (
            &["34", "2", "ours", "lock", "7"][..],
            "PALISADE sequence_reused 7: ",
        ),
        (
            &["34", "2", "ours", "lock", "6"],
            "PALISADE sequence_stale 7: ",
        ),
        (&["34", "2", "ours", "other"], "PALISADE wrong_lock lock: "),
        (&["34", "2"], "PALISADE wrong_authority ours: "),
    ] {
        let refused = call(con, "palisade_incrby", arguments).await.unwrap_err();
        assert!(refused.starts_with(said), "{arguments:?}: {refused}");
    }
    assert_eq!(
        text(call(con, "palisade_del", &["34", "ours", "lock"]).await),
        "1"
    );
    let missing = call(con, "palisade_del", &["34", "ours", "lock"])
        .await
        .unwrap_err();
    assert!(missing.starts_with("PALISADE missing"), "{missing}");
    // A command that fails changes nothing, and its error is the command's own.
    let mut push = cmd("LPUSH");
    push.arg(TOTAL).arg("x").exec_async(con).await.unwrap();
    let failed = call(con, "palisade_append", &["35", "x", "ours", "lock"])
        .await
        .unwrap_err();
    assert!(failed.contains("wrong kind of value"), "{failed}");
    let mark: String = con.get(MARK).await.unwrap();
    assert!(mark.starts_with("34\n"), "{mark}");
    // Data whose fence is gone.
    con.del::<_, ()>(MARK).await.unwrap();
    let lost = call(con, "palisade_set", &["36", "1"]).await.unwrap_err();
    assert!(lost.starts_with("PALISADE lost -: "), "{lost}");
}

/// A function and this crate's resource share a mark: each shuts the other's older holders out.
#[tokio::test]
async fn the_library_and_the_script_are_one_fence() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    install(con).await.unwrap();
    let t = |number| Token::new(number).unwrap();
    let resource = Resource::new("orders").unwrap();
    assert_eq!(text(call(con, "palisade_set", &["34", "1"]).await), "OK");
    let late = resource
        .write(t(33))
        .set(con, TOTAL, b"9")
        .await
        .unwrap_err();
    assert_eq!(
        late.rejected(),
        Some(&Reject::Stale {
            presented: t(33),
            highest: t(34)
        })
    );
    let number = Sequence::new(3).unwrap();
    let newer = resource
        .write(t(35))
        .numbered(number)
        .set(con, TOTAL, b"2")
        .await;
    newer.unwrap();
    let refused = call(con, "palisade_set", &["34", "9"]).await.unwrap_err();
    assert!(refused.starts_with("PALISADE stale 35"), "{refused}");
    assert_eq!(con.get::<_, i64>(TOTAL).await.unwrap(), 2);
}

/// A function changes only the resource that it checks: it takes no key of another resource, and no mark.
#[tokio::test]
async fn a_function_takes_the_keys_of_its_own_resource_only() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    install(con).await.unwrap();
    let fcall = async |con: &mut ConnectionManager,
                       name: &str,
                       mark: &str,
                       key: Option<&str>,
                       more: &[&str]| {
        let mut fcall = cmd("FCALL");
        fcall
            .arg(name)
            .arg(1 + usize::from(key.is_some()))
            .arg(mark);
        let answer = fcall.arg(key).arg("7").arg(more).query_async(con).await;
        answer.map_err(|error: redis::RedisError| error.to_string())
    };
    call(con, "palisade_set", &["35", "new"]).await.unwrap();
    con.set::<_, _, ()>("orders", "new").await.unwrap();
    let mine = "palisade:fence:{mine}";
    let functions: [(&str, &[&str]); 7] = [
        ("palisade_get", &[]),
        ("palisade_hget", &["f"]),
        ("palisade_set", &["x"]),
        ("palisade_append", &["x"]),
        ("palisade_incrby", &["1"]),
        ("palisade_hset", &["f", "x"]),
        ("palisade_del", &[]),
    ];
    for (name, more) in functions {
        for key in [
            TOTAL,
            "orders",
            "other",
            MARK,
            mine,
            "palisade:fence:mine",
            "x{orders}{mine}",
            "{}{mine}",
            "{mine",
            "mine}",
            "MINE",
            "mine ",
            "mine\n",
            "",
        ] {
            let refused = fcall(con, name, mine, Some(key), more).await;
            let refused = refused
                .map(|answer: Value| format!("{answer:?}"))
                .unwrap_err();
            assert!(refused.contains("invalid -"), "{name} {key:?}: {refused}");
        }
    }
    for mark in [
        "palisade:fence:{a\n}",
        "palisade:fence:{é}",
        "palisade:fence:{a}b}",
        "palisade:fence:{}",
        &format!("palisade:fence:{{{}}}", "x".repeat(256)),
    ] {
        let refused: Result<Value, _> = fcall(con, "palisade_claim", mark, None, &[]).await;
        let refused = refused.unwrap_err();
        assert!(refused.contains("invalid -"), "{mark:?}: {refused}");
    }
    assert_eq!(con.get::<_, String>(TOTAL).await.unwrap(), "new");
    assert!(!con.exists::<_, bool>(mine).await.unwrap());
    // The control: its own keys.
    for key in ["mine", "{mine}:x", "x{mine}{orders}"] {
        let done = fcall(con, "palisade_set", mine, Some(key), &["x"]).await;
        assert_eq!(done, Ok(Value::Okay), "{key}");
        con.del::<_, ()>(key).await.unwrap();
    }
    // Nothing else is offered: the decision alone would take any command.
    let mut list = cmd("FUNCTION");
    let listed: Value = list.arg("LIST").query_async(con).await.unwrap();
    assert!(
        !format!("{listed:?}").contains("palisade_fence"),
        "{listed:?}"
    );
}

#[tokio::test]
async fn it_is_installed_again_refused_over_a_newer_one_and_removed() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    assert_eq!(installed(con).await.unwrap(), None);
    for _ in 0..2 {
        install(con).await.unwrap();
        assert_eq!(installed(con).await.unwrap(), Some(LIBRARY_VERSION));
    }
    assert!(!library().contains("--[[fence.lua]]"));
    let stated = format!("local VERSION = {LIBRARY_VERSION}");
    assert!(library().contains(&stated));
    let newer = library().replace(&stated, "local VERSION = 99");
    cmd("FUNCTION")
        .arg("LOAD")
        .arg("REPLACE")
        .arg(newer)
        .exec_async(con)
        .await
        .unwrap();
    let refused = install(con).await.unwrap_err().to_string();
    assert!(refused.contains("has version 99"), "{refused}");
    assert_eq!(installed(con).await.unwrap(), Some(99));
    call(con, "palisade_claim", &["34"]).await.unwrap();
    for _ in 0..2 {
        uninstall(con).await.unwrap();
        assert_eq!(installed(con).await.unwrap(), None);
    }
    // The marks stay.
    let mark: String = con.get(MARK).await.unwrap();
    assert!(mark.starts_with("34\n"), "{mark}");
}
