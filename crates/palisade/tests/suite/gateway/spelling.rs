//! Names that real services treat as equal (rule F11): a stale token must not reach account 7 under another spelling.

use std::collections::BTreeSet;

use palisade_testbed::LenientUpstream;

use super::support::{Caller, Gateway, raw_put, writes};

/// Spellings of the account, generated from a table.
fn spellings() -> BTreeSet<String> {
    let before = [
        "",
        "0",
        "00",
        "+",
        "%2B",
        "+0",
        "0_",
        "-0",
        "%20",
        "%09",
        "%0A",
        "%0C",
        "%1F",
        "%C2%A0",
        "%E3%80%80",
        "%EF%BB%BF",
        "./",
        "x/../",
        "/",
        "%2F",
        "8%2F..%2F",
        "%2e%2e/accounts/",
        "\\",
        "{",
    ];
    let seven = [
        "7",
        "%37",
        "%2537",
        "%25%33%37",
        "%EF%BC%97",
        "%D9%A7",
        "07",
        "7.0",
        "0x7",
        "7e0",
    ];
    let after = [
        "",
        ".0",
        ".",
        "%20",
        "%09",
        "%0A",
        "%C2%A0",
        ";v=1",
        ";",
        "%3Bv=1",
        "%00",
        "%2F",
        "_",
        "}",
        "%",
        "%zz",
        "/.",
        "//",
        "?_method=PUT",
        ",7",
        "%c2%a0",
    ];
    let mut all = BTreeSet::new();
    for middle in seven {
        for first in before {
            all.insert(format!("/accounts/{first}{middle}"));
            all.insert(format!("/accounts/{first}7"));
        }
        for last in after {
            all.insert(format!("/accounts/{middle}{last}"));
        }
    }
    for first in before {
        for last in after {
            all.insert(format!("/accounts/{first}7{last}"));
        }
    }
    for folder in [
        "/Accounts/7",
        "/ACCOUNTS/07",
        "/%61ccounts/7",
        "//accounts/7",
        "/x/../accounts/7",
        "/accounts;x/7",
    ] {
        all.insert(folder.to_owned());
    }
    all.remove("/accounts/7");
    all
}

/// How many of a stale holder's writes reached account 7.
async fn overwritten(url: &str) -> usize {
    let all = writes(url).await;
    all.iter()
        .filter(|(id, text)| *id == 7 && text == "stale")
        .count()
}

/// A newer holder has account 7; an older one writes to every spelling. Returns how many writes reached the account.
async fn attack(upstream: &str, routes: &[&str]) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let settings: Vec<_> = routes.iter().flat_map(|route| ["--route", route]).collect();
    let gateway = Gateway::start(upstream, dir.path(), &settings);
    let caller = Caller::of(&gateway.url);
    assert_eq!(caller.put("/accounts/7", 100, "kept").await.status, 200);
    assert_eq!(
        caller.put("/accounts/7", 5, "stale").await.code(),
        (412, "stale".into())
    );
    let before = overwritten(upstream).await;
    for path in spellings() {
        let answer = raw_put(&gateway.url, &path, Some(5), "stale").await;
        assert!(answer.starts_with("HTTP/1.1 "), "{path}: {answer:?}");
    }
    assert_eq!(
        caller.put("/accounts/7", 100, "kept").await.status,
        200,
        "all others are let through"
    );
    overwritten(upstream).await - before
}

async fn a_stale_token_reaches_no_account(kind: &'static str) {
    assert!(spellings().len() > 400, "{}", spellings().len());
    let upstream = LenientUpstream::start(kind);
    let url = upstream.url();
    // Control: this many spellings mean account 7 to the service itself.
    for path in spellings() {
        raw_put(&url, &path, None, "stale").await;
    }
    let direct = overwritten(&url).await;
    assert!(direct >= 20, "{kind}: {direct}");
    for routes in [
        &["/accounts/{id:uint}=account:{id}"][..],
        &["/accounts/{id}=account:{id}", "/=all"],
        &["/accounts/{id:int}=account:{id}", "/accounts=accounts"],
        &["/accounts/{id:slug}=name:{id}", "/accounts/7=account:7"],
    ] {
        assert_eq!(attack(&url, routes).await, 0, "{kind} behind {routes:?}");
    }
    // Second control: a route type that does not fit a service that parses numbers.
    let lenient = attack(&url, &["/accounts/{id:name}=account:{id}"]).await;
    assert!(lenient > 0, "{kind}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_token_reaches_no_account_of_fastapi() {
    a_stale_token_reaches_no_account("fastapi").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_token_reaches_no_account_of_flask() {
    a_stale_token_reaches_no_account("flask").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_token_reaches_no_account_of_urlparse() {
    a_stale_token_reaches_no_account("urlparse").await;
}
