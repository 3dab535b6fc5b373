//! Text: histories, names, tokens, ids, routes.

use palisade_core::fence::Sequence;
use palisade_core::{AuthorityId, ClientId, LeaseKey, LockName, RequestId, Token, Ttl};
use palisade_fence::http::Routes;
use palisade_wal::Id;

use crate::history::{History, check, generate};

/// A history file: parsed, checked, and reported.
pub(super) fn history(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    match History::parse(text) {
        Ok(history) => {
            let report = check(&history);
            assert_eq!(report.operations, history.operations.len());
            true
        }
        Err(error) => {
            assert!(error.line <= text.lines().count().max(1), "{error}");
            false
        }
    }
}

pub(super) fn history_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let shape = |kinds: bool| generate::Shape {
        clients: 4,
        locks: 2 + usize::from(kinds),
        operations: 40,
        kinds,
    };
    let names = [
        ("calm", false),
        ("busy", false),
        ("away", false),
        ("kinds", true),
    ];
    let text = |((name, kinds), seed)| {
        let text = generate::clean_text(seed, shape(kinds));
        (name, text.into_bytes())
    };
    names.into_iter().zip(1..).map(text).collect()
}

/// Every line, parsed as each kind of word.
pub(super) fn words(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    for line in text.lines() {
        name(line);
        number(line);
        let key = LeaseKey::from_hex(line);
        assert!(key.is_err() || key.is_ok_and(|key| key.to_hex().eq_ignore_ascii_case(line)));
        let request = RequestId::from_hex(line);
        assert!(request.is_err() || request.is_ok_and(|id| id.to_hex().eq_ignore_ascii_case(line)));
        let _ = line.parse::<Id>();
        drop(palisade_client::without_secrets(line));
    }
    match Routes::parse(text.lines()) {
        Ok(_) => true,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            text.lines().any(|line| LockName::new(line).is_ok())
        }
    }
}

/// A name is either accepted unchanged or refused with a reason.
fn name(line: &str) {
    let good =
        (1..=255).contains(&line.len()) && line.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    assert_eq!(LockName::new(line).is_ok(), good, "{line:?}");
    assert_eq!(ClientId::new(line).is_ok_and(|name| *name == *line), good);
    match AuthorityId::new(line) {
        Ok(name) => assert_eq!(&*name, line),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn number(line: &str) {
    let Ok(number) = line.parse::<u64>() else {
        return;
    };
    let token = Token::new(number);
    assert_eq!(token.is_ok(), (1..1 << 53).contains(&number));
    assert_eq!(Sequence::new(number).is_some(), number < 1 << 53);
    assert_eq!(
        Ttl::from_millis(number).is_ok(),
        (100..=86_400_000).contains(&number)
    );
    if let Ok(token) = token {
        assert!(token.next().is_none_or(|next| next > token));
    }
}

pub(super) fn word_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let lines = [
        (
            "names",
            "orders\nstorage:customer-orders-bucket\na b ~\n\u{e9}\n\n",
        ),
        (
            "numbers",
            "0\n1\n34\n100\n86400000\n9007199254740991\n9007199254740992\n18446744073709551615\n",
        ),
        (
            "ids",
            "000102030405060708090a0b0c0d0e0f\n00010203-0405-0607-0809-0a0b0c0d0e0f\nABCDEF\n",
        ),
        (
            "urls",
            "http://127.0.0.1:7420\npostgres://user:secret@host:5432/db?x=1\nredis://:secret@[::1]:6379\netcd://a,b\n",
        ),
        (
            "routes",
            "/orders/=orders\n/t/{1:uint}/=tenant-{1}\nGET /x=y\n",
        ),
    ];
    let lines = lines.into_iter();
    lines
        .map(|(name, text)| (name, text.as_bytes().to_vec()))
        .collect()
}
