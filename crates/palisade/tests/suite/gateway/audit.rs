//! Every rejection, whatever its reason, is logged and counted once (rule F13); no message says how to lower a fence.

use std::fs;

use super::support::{Caller, Gateway};
use super::upstream::Upstream;

/// By default one request can raise a fence by one restore's leap; the flag changes that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_believed_up_to_a_bound() {
    let (_upstream, url) = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap();
    let default = palisade_fence::DEFAULT_MAX_JUMP;
    for (name, flags, bound) in [
        ("default", &[][..], default),
        ("less", &["--max-jump", "1000"], 1_000),
        ("more", &["--max-jump", "140737488355328"], 2 * default),
    ] {
        let gateway = Gateway::start(&url, &dir.path().join(name), flags);
        let caller = Caller::of(&gateway.url);
        let far = caller.put("/accounts/7", bound + 1, "x").await;
        assert_eq!(far.code(), (409, "jump".into()), "{name}");
        assert_eq!(far.json()["error"]["bound"], bound, "{name}");
        assert_eq!(
            caller.put("/accounts/7", bound, "x").await.status,
            200,
            "{name}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_refusal_is_logged_and_counted_once() {
    let (_upstream, url) = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let settings = [
        "--route",
        "/accounts/{id:uint}=account:{id}",
        "--request-bytes",
        "100",
    ];
    let gateway = Gateway::logging(&url, &dir.path().join("data"), &settings, &log);
    let caller = Caller::of(&gateway.url);
    let admin = Caller::of(&gateway.admin);
    let ours = [
        ("x-fencing-token", "5"),
        ("x-fencing-authority", "ours"),
        ("x-fencing-sequence", "5"),
    ];
    assert_eq!(
        caller.call("PUT", "/accounts/7", &ours, "5").await.status,
        200
    );
    let long = "x".repeat(101);
    let token = [("x-fencing-token", "5"), ("x-fencing-authority", "ours")];
    let theirs = [("x-fencing-token", "6"), ("x-fencing-authority", "theirs")];
    let stale = [("x-fencing-token", "4"), ("x-fencing-authority", "ours")];
    let far = [
        ("x-fencing-token", "9007199254740991"),
        ("x-fencing-authority", "ours"),
    ];
    let late = [token[0], token[1], ("x-fencing-sequence", "4")];
    for (method, path, headers, body, reason) in [
        ("PUT", "/accounts/7", &[][..], "", "tokenless"),
        ("PUT", "/accounts/9", &[], "", "tokenless"),
        (
            "PUT",
            "/accounts/7",
            &[("x-fencing-token", "five")],
            "",
            "invalid",
        ),
        ("PUT", "/accounts/07", &token, "", "invalid"),
        ("GET", "/accounts/7?_method=PUT", &[], "", "invalid"),
        ("GET", "/accounts/7", &[], "body", "invalid"),
        ("TRACE", "/accounts/7", &[], "", "method_not_allowed"),
        ("PUT", "/elsewhere", &token, "", "no_route"),
        ("PUT", "/accounts/7", &token, &long, "too_large"),
        ("PUT", "/accounts/7", &theirs, "", "wrong_authority"),
        ("PUT", "/accounts/7", &stale, "", "stale"),
        ("GET", "/accounts/7", &stale, "", "stale"),
        ("PUT", "/accounts/7", &far, "", "jump"),
        ("PUT", "/accounts/7", &late, "", "sequence_stale"),
        ("PUT", "/accounts/7", &ours, "other", "sequence_reused"),
    ] {
        let count = async || {
            let metrics = admin.observe("/metrics").await.text();
            let name = format!("palisade_gateway_rejected_total{{reason=\"{reason}\"}} ");
            let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
            line.unwrap_or_else(|| panic!("{name} in {metrics}"))
                .parse::<u64>()
                .unwrap()
        };
        let said = || {
            let log = fs::read_to_string(&log).unwrap();
            let event = format!("\"reason\":\"{reason}\"");
            log.lines().filter(|line| line.contains(&event)).count()
        };
        let before = (count().await, said());
        let reply = caller.call(method, path, headers, body.to_owned()).await;
        assert_eq!(reply.code().1, reason, "{method} {path}");
        assert_eq!(
            (count().await, said()),
            (before.0 + 1, before.1 + 1),
            "{method} {path} {reason}"
        );
        let text = reply.text();
        assert!(!text.contains("rearm") && !text.contains("lower"), "{text}");
        assert!(reason != "stale" || text.contains("give up"), "{text}");
    }
}
