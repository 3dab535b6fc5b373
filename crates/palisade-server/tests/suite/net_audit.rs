//! The audit file.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use palisade_proto::v1::{self, request::Operation};
use palisade_server::net::Settings;
use serde_json::{Value, json};

use crate::net_access::{
    Closed, ask_session, closed_with, code_of, http_of, open_session, plain_of, rules, stream_of,
    token, unary_of,
};
use crate::net_support::{Server, grpc, hang_up, soon};

async fn audited(file: &Path) -> Closed {
    audited_with(file, "").await
}

/// A server whose access file has `more` besides the rules.
pub(crate) async fn audited_with(file: &Path, more: &str) -> Closed {
    let settings = Settings {
        audit: Some(file.to_owned()),
        ..Settings::default()
    };
    closed_with(&format!("{}{more}", rules()), settings).await
}

/// The codes of a break of `x/1`, held with this token, at each interface.
async fn breaks(closed: &Closed, fencing_token: u64, principal: &str) -> [String; 4] {
    let server = &closed.server;
    let token = token(principal);
    let token = Some(&*token);
    let body = json!({"fencing_token": fencing_token, "reason": "stuck \"job\"\n"}).to_string();
    let operation = || {
        Operation::Break(v1::BreakRequest {
            lock: "x/1".to_owned(),
            fencing_token,
            reason: "stuck \"job\"\n".to_owned(),
        })
    };
    [
        http_of(server, ("POST", "/v1/locks/x%2F1/break", body), token).await,
        unary_of(server, operation(), token).await,
        stream_of(server, operation(), token).await,
        plain_of(server, operation(), token).await,
    ]
}

async fn acquire(closed: &Closed) {
    let acquire = Operation::Acquire(grpc::acquire("x/1", "c", 0));
    assert_eq!(
        plain_of(&closed.server, acquire, Some(&token("hold"))).await,
        ""
    );
}

/// The lines that are there, without their times. Waits until `enough`.
pub(crate) async fn lines(file: &Path, enough: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    soon(async {
        loop {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            let parsed = whole.lines().map(|line| {
                let mut line: Value = serde_json::from_str(line).unwrap();
                let at = line.as_object_mut().unwrap().remove("at");
                assert!(at.is_some_and(|at| at.is_string()), "{line}");
                line
            });
            let lines: Vec<Value> = parsed.collect();
            if enough(&lines) {
                return lines;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

/// Other tests of this process send SIGHUP too.
pub(crate) fn without_rules(lines: &[Value]) -> Vec<Value> {
    let others = lines.iter().filter(|line| line["event"] != "rules");
    others.cloned().collect()
}

#[tokio::test]
async fn denials_and_breaks_at_every_interface_are_recorded_without_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.jsonl");
    let closed = audited(&file).await;
    acquire(&closed).await;
    assert_eq!(breaks(&closed, 999, "hold").await, ["forbidden"; 4]);
    assert_eq!(breaks(&closed, 999, "break").await, ["stale"; 4]);
    let metrics = ("GET", "/metrics", String::new());
    assert_eq!(
        http_of(&closed.server, metrics, None).await,
        "unauthenticated"
    );
    // It answers everybody, so it denies nobody.
    let health = ("GET", "/healthz", String::new());
    assert_eq!(http_of(&closed.server, health, None).await, "");
    let admin = ("POST", "/v1/clock/advance", r#"{"ms":1}"#.to_owned());
    http_of(&closed.server, admin, Some(&token("admin"))).await;

    let denied = json!({
        "event": "denied",
        "principal": "hold",
        "code": "forbidden",
        "message": "hold may not break the lock x/1: no rule grants it",
    });
    let broken = json!({
        "event": "break",
        "principal": "break",
        "lock": "x/1",
        "fencing_token": 999,
        "reason": "stuck \"job\"\n",
    });
    let lines = lines(&file, |lines| without_rules(lines).len() >= 10).await;
    let lines = without_rules(&lines);
    assert_eq!(lines[..4], [(); 4].map(|()| denied.clone()));
    assert_eq!(lines[4..8], [(); 4].map(|()| broken.clone()));
    assert_eq!(lines[8]["code"], "unauthenticated");
    assert_eq!(lines[8]["principal"], Value::Null);
    let moved = json!({"event": "admin", "principal": "admin", "change": "move the clock by 1 ms"});
    assert_eq!(lines[9..], [moved]);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        !text.contains("pal_") || text.matches("pal_").count() == text.matches("pal_…").count()
    );
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "others may read it: {mode:o}");
}

/// Each verb of an operator leaves a line before it is done; the control is the caller without the right, who leaves a denial.
#[tokio::test]
async fn changes_of_permits_and_openings_are_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.jsonl");
    let closed = audited(&file).await;
    let server = &closed.server;
    let operations = || {
        [
            Operation::Resize(v1::ResizeRequest {
                lock: "x/s".to_owned(),
                permits: 9,
            }),
            Operation::Open(v1::OpenRequest {
                lock: "x/1".to_owned(),
                reason: "again".to_owned(),
            }),
        ]
    };
    for principal in ["hold", "break"] {
        let token = token(principal);
        for operation in operations() {
            unary_of(server, operation, Some(&token)).await;
        }
        for (path, body) in [
            ("/v1/locks/x%2Fs/permits", r#"{"of": 9}"#),
            ("/v1/locks/x%2F1/open", r#"{"reason": "again"}"#),
        ] {
            http_of(server, ("POST", path, body.to_owned()), Some(&token)).await;
        }
    }
    let lines = lines(&file, |lines| without_rules(lines).len() >= 8).await;
    let lines = without_rules(&lines);
    assert!(lines[..4].iter().all(|line| line["event"] == "denied"));
    let permits = json!({"event": "permits", "principal": "break", "lock": "x/s", "permits": 9});
    let open = json!({"event": "open", "principal": "break", "lock": "x/1", "reason": "again"});
    assert_eq!(lines[4..], [permits.clone(), open.clone(), permits, open]);
}

#[tokio::test]
async fn a_break_is_refused_while_the_file_cannot_be_written_and_an_acquire_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.jsonl");
    symlink("/dev/full", &file).unwrap();
    let closed = audited(&file).await;
    acquire(&closed).await;
    assert_eq!(breaks(&closed, 1, "break").await, ["unavailable"; 4]);
    let admin = ("POST", "/v1/clock/advance", r#"{"ms":1}"#.to_owned());
    let admin = http_of(&closed.server, admin, Some(&token("admin"))).await;
    assert_eq!(admin, "unavailable");
    // Every verb of an operator: with a file, the lock would not be closed, and there would be no permits.
    for (path, body) in [
        ("/v1/locks/x%2F1/open", r#"{"reason": "again"}"#),
        ("/v1/locks/x%2Fs/permits", r#"{"of": 9}"#),
    ] {
        let asked = ("POST", path, body.to_owned());
        let answer = http_of(&closed.server, asked, Some(&token("break"))).await;
        assert_eq!(answer, "unavailable", "{path}");
    }
    assert_eq!(breaks(&closed, 1, "hold").await, ["forbidden"; 4]);
    // Still held, by the same token.
    let show = ("GET", "/v1/locks/x%2F1", String::new());
    assert_eq!(
        http_of(&closed.server, show, Some(&token("observe"))).await,
        ""
    );
    let (locks, token) = (closed.server.status().await.locks, token("observe"));
    assert_eq!(locks, 1);
    let request = format!(
        "GET /metrics HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    );
    // Four breaks, a clock, an opening, a change of permits and four denials; no line is known to be lost before it was tried.
    soon(async { while lost(&closed.server, &request).await < 11 {} }).await;

    // There is room again, and the file is opened again.
    let real = dir.path().join("real");
    std::fs::remove_file(&file).unwrap();
    symlink(&real, &file).unwrap();
    hang_up().await;
    soon(async {
        while !real.exists() {
            tokio::task::yield_now().await
        }
    })
    .await;
    assert_eq!(breaks(&closed, 1, "break").await[0], "");
    let lines = lines(&real, |lines| {
        lines.iter().any(|line| line["event"] == "break")
    })
    .await;
    let counted = lost(&closed.server, &request).await;
    assert_eq!(lines[0], json!({"event": "lost", "lines": counted}));
}

async fn lost(server: &Server, request: &str) -> u64 {
    let metrics = format!("{:?}", server.raw(request.as_bytes()).await);
    let (_, value) = metrics.rsplit_once("palisade_audit_lost_total ").unwrap();
    let digits = value.split(|next: char| !next.is_ascii_digit()).next();
    digits.unwrap().parse().unwrap()
}

#[tokio::test]
async fn new_rules_are_recorded_and_so_are_those_that_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.jsonl");
    let closed = audited(&file).await;
    // Once it answers, it receives signals.
    acquire(&closed).await;
    for (text, taken) in [
        ("[auth]\n[[auth.rule]]\n".to_owned(), false),
        (rules(), true),
    ] {
        std::fs::write(&closed.file, text).unwrap();
        hang_up().await;
        let recorded = |lines: &[Value]| {
            lines
                .last()
                .is_some_and(|line| line["event"] == "rules" && line["taken"] == taken)
        };
        let lines = lines(&file, recorded).await;
        let last = lines.last().unwrap();
        assert_eq!(last["file"], closed.file.to_str().unwrap());
        assert_eq!(
            last["message"].to_string().contains("unknown key"),
            !taken,
            "{last}"
        );
    }
}

#[tokio::test]
async fn a_line_that_a_crash_has_cut_does_not_spoil_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.jsonl");
    std::fs::write(&file, "{\"at\":").unwrap();
    let closed = audited(&file).await;
    assert_eq!(breaks(&closed, 1, "break").await, ["not_held"; 4]);
    let text = std::fs::read_to_string(&file).unwrap();
    let (cut, others) = text.split_once('\n').unwrap();
    assert_eq!(cut, "{\"at\":");
    let others = others.lines().map(serde_json::from_str::<Value>);
    let events: Vec<Value> = others.map(|line| line.unwrap()["event"].take()).collect();
    // Another test may have had the rules read again.
    let breaks = events.iter().filter(|event| *event == "break").count();
    assert_eq!(breaks, 4, "{text}");
}

#[tokio::test]
async fn a_caller_cannot_fill_the_file_with_refusals_and_what_is_left_out_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.jsonl");
    let closed = audited(&file).await;
    let metrics = format!(
        "GET /metrics HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
        token("observe")
    );
    let show = || {
        Operation::Show(v1::ShowRequest {
            lock: "x/1".to_owned(),
        })
    };
    let hold = token("hold");
    let mut session = open_session(&closed.server, Some(&hold)).await;
    let mut denied = 0;
    for _ in 0..1_000 {
        let code = code_of(ask_session(&mut session, show()).await);
        assert_eq!(code, "forbidden");
        denied += 1;
    }
    assert!(counted(&closed.server, &metrics, "left_out").await > 0);
    // Another caller has lines of its own.
    assert_eq!(
        plain_of(&closed.server, show(), Some(&token("elsewhere"))).await,
        "forbidden"
    );
    // Until the next one has room for its line.
    let before = counted(&closed.server, &metrics, "left_out").await;
    soon(async {
        loop {
            ask_session(&mut session, show()).await;
            denied += 1;
            let now = counted(&closed.server, &metrics, "left_out").await;
            if now - before < denied - 1_000 {
                return;
            }
        }
    })
    .await;
    let left_out = counted(&closed.server, &metrics, "left_out").await;
    let of = |lines: &[Value], principal: &str| {
        let lines = lines.iter();
        lines.filter(|line| line["principal"] == principal).count() as u64
    };
    let lines = lines(&file, |lines| {
        of(lines, "elsewhere") == 1 && of(lines, "hold") == denied - left_out
    })
    .await;
    let said = lines.iter().filter_map(|line| line["left_out"].as_u64());
    assert!(said.sum::<u64>() > 0);
    assert_eq!(counted(&closed.server, &metrics, "lost").await, 0);
}

async fn counted(server: &Server, request: &str, what: &str) -> u64 {
    let metrics = server.raw(request.as_bytes()).await.body;
    let (_, value) = metrics
        .rsplit_once(&format!("palisade_audit_{what}_total "))
        .unwrap();
    value.lines().next().unwrap().parse().unwrap()
}
