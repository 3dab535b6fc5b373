//! The script, called as another language would call it, compared with the vectors that every implementation
//! is compared with.

use palisade_core::Token;
use palisade_fence::{FenceRecord, Mode, Op, Reject, Sequence, Verdict, Written};
use palisade_testbed::Redis;
use redis::{AsyncCommands as _, Value};

use super::subject::connect;
use crate::vectors::{Case, cases};

const SCRIPT: &str = include_str!("../../../src/redis/fence.lua");

/// A mark as the script stores it; a result is packed, as a short string.
fn mark(record: &FenceRecord) -> Option<Vec<u8>> {
    let state = &record.state;
    let held = state.mark?;
    let written = match held.written {
        Written::Nothing => String::new(),
        Written::Unnumbered => "yes".to_owned(),
        Written::Through(last) => last.to_string(),
    };
    let text = format!(
        "{}\n{written}\n{}\n{}\n{}\n",
        held.token,
        or_empty(record.digest),
        state.authority.as_ref().map_or("", |id| id.as_str()),
        state.lock.as_ref().map_or("", |name| name.as_str()),
    );
    let mut mark = text.into_bytes();
    if let Some(result) = &record.result {
        mark.push(0xa0 | u8::try_from(result.len()).unwrap());
        mark.extend(result);
    }
    Some(mark)
}

fn or_empty(number: Option<u64>) -> String {
    number.map_or(String::new(), |number| number.to_string())
}

/// The arguments of the script, in its order.
fn arguments(case: &Case) -> Vec<String> {
    let (op, effect, sequence) = match (case.op, case.token) {
        (_, None) => ("tokenless", &["command", "SET", "new"][..], None),
        (Op::Claim, _) => ("claim", &["none"][..], None),
        (Op::Read, _) => ("read", &["command", "GET"][..], None),
        (Op::Write(sequence), _) => ("write", &["command", "SET", "new"][..], sequence),
    };
    let mode = match case.rule.mode {
        Mode::Strict => "strict",
        _ => "claim",
    };
    let mut all = vec![
        mode.to_owned(),
        or_empty(case.rule.max_jump),
        op.to_owned(),
        or_empty(case.token.map(Token::get)),
        case.authority
            .as_ref()
            .map_or("", |id| id.as_str())
            .to_owned(),
        case.lock
            .as_ref()
            .map_or("", |name| name.as_str())
            .to_owned(),
        or_empty(sequence.map(Sequence::get)),
        or_empty(case.digest),
    ];
    all.extend(effect.iter().map(|&word| word.to_owned()));
    all
}

/// The words of the answer that the verdict demands.
fn answer(case: &Case) -> Vec<String> {
    let highest = or_empty(case.after().state.highest().map(Token::get));
    let reject = match &case.verdict {
        // Stricter than the rule: a write without a token before the first one would be data without a fence.
        Verdict::Admit(_) if case.token.is_none() => return vec!["unarmed".to_owned()],
        Verdict::Admit(_) => return vec!["admit".to_owned(), highest],
        Verdict::Repeat => return vec!["repeat".to_owned(), highest],
        Verdict::Reject(reject) => reject,
    };
    let mut words = vec!["reject".to_owned(), reject.code().name().to_owned()];
    words.extend(match reject {
        Reject::Stale { highest, .. } | Reject::Tokenless { highest } => vec![highest.to_string()],
        Reject::SequenceStale { last } | Reject::SequenceReused { last } => vec![last.to_string()],
        Reject::WrongAuthority { bound } => vec![bound.as_str().to_owned()],
        Reject::WrongLock { bound } => vec![bound.as_str().to_owned()],
        Reject::Jump { highest, bound } => {
            vec![or_empty(highest.map(Token::get)), bound.to_string()]
        }
        _ => Vec::new(),
    });
    words
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Evalsha,
    Fcall,
}

#[tokio::test]
async fn the_script_decides_as_the_vectors_say() {
    decides(How::Evalsha).await;
}

#[tokio::test]
async fn the_library_decides_as_the_vectors_say() {
    decides(How::Fcall).await;
}

async fn decides(how: How) {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    if how == How::Fcall {
        // The decision alone, which the library does not offer: it would take any key and any command.
        let library = palisade_fence::redis::library()
            + "\nredis.register_function('decision_alone', fence)\n";
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg(library).exec_async(con).await.unwrap();
    }
    let script = redis::Script::new(SCRIPT);
    for (at, case) in cases().iter().enumerate() {
        let (key, data) = (
            format!("palisade:fence:{{v{at}}}"),
            format!("{{v{at}}}:data"),
        );
        if let Some(mark) = mark(&case.before) {
            let _: () = con.set(&key, mark).await.unwrap();
            let _: () = con.set(&data, "old").await.unwrap();
        }
        let said: Vec<Value> = match how {
            How::Evalsha => {
                let mut call = script.prepare_invoke();
                call.key(&key).key(&data).arg(arguments(case));
                call.invoke_async(con).await.unwrap()
            }
            How::Fcall => {
                let mut call = redis::cmd("FCALL");
                call.arg("decision_alone").arg(2).arg(&key).arg(&data);
                call.arg(arguments(case)).query_async(con).await.unwrap()
            }
        };
        let expected = answer(case);
        let words: Vec<String> = said.iter().take(expected.len()).map(word).collect();
        assert_eq!(words, expected, "{}", case.text);
        if matches!(case.verdict, Verdict::Repeat) {
            let result = case
                .before
                .result
                .clone()
                .map_or(Value::Nil, Value::BulkString);
            assert_eq!(said[2], result, "{}", case.text);
        }
        let stored: Option<Vec<u8>> = con.get(&key).await.unwrap();
        assert_eq!(stored, mark(case.after()), "{}", case.text);
        let carried_out = matches!((&case.verdict, case.op), (Verdict::Admit(_), Op::Write(_)));
        let text: Option<String> = con.get(&data).await.unwrap();
        let is_new = text.as_deref() == Some("new");
        assert_eq!(is_new, carried_out && case.token.is_some(), "{}", case.text);
    }
}

fn word(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// docs/reference/fence-formats.md describes the mark.
#[tokio::test]
async fn the_golden_mark_is_what_the_script_reads_and_writes() {
    let golden = include_str!("../../../../../vectors/formats/redis.mark");
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    let key = "palisade:fence:{orders}";
    let numbered = "claim,,write,34,a:0f3c,nightly,3,18446744073709551615,none";
    let asked: Vec<&str> = numbered.split(',').collect();
    for before in [None, Some(golden)] {
        if let Some(mark) = before {
            let _: () = con.set(key, mark).await.unwrap();
        }
        let script = redis::Script::new(SCRIPT);
        let mut call = script.prepare_invoke();
        let said: Vec<Value> = call.key(key).arg(&asked).invoke_async(con).await.unwrap();
        let expected = if before.is_some() { "repeat" } else { "admit" };
        assert_eq!(word(&said[0]), expected);
        let stored: String = con.get(key).await.unwrap();
        assert_eq!(stored, golden);
    }
}
