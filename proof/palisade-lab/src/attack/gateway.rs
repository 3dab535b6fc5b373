//! Rows 15 – 18: ways around the fence in front of an HTTP API.

use std::net::SocketAddr;
use std::time::Duration;

use super::harness::{Harness, Program, elapsed, now, pause, until};
use super::http::{self, Connection, Reply};
use super::outcome::{Attack, Outcome, named};
use super::upstream::Upstream;

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "gateway-spellings",
        row: 15,
        does: "a stale token writes to an account under names that the upstream treats as equal",
        bounds: "14 spellings",
        run: spellings,
    },
    Attack {
        name: "gateway-hidden-writes",
        row: 16,
        does: "writes without a token hide in bodies of safe methods and behind method overrides",
        bounds: "7 requests",
        run: hidden_writes,
    },
    Attack {
        name: "gateway-stopped-client",
        row: 17,
        does: "a holder reads nothing of its answer of 32 MiB, another sends one byte each 2 s; a successor claims",
        bounds: "45 s each",
        run: stopped_client,
    },
    Attack {
        name: "gateway-503",
        row: 18,
        does: "the upstream answers 503 and executes the write 1.5 s later, after a successor has claimed",
        bounds: "30 s",
        run: early_503,
    },
];

/// An upstream with a gateway in front, or the reason why it cannot run.
fn fenced(
    harness: &Harness,
    settings: &[&str],
) -> Result<Result<(Upstream, Program), Outcome>, String> {
    match Upstream::start(harness)? {
        None => Ok(Err(Outcome::not_run(NO_UPSTREAM))),
        Some(upstream) => {
            let gateway = upstream.gateway(harness, "gateway", settings)?;
            Ok(Ok((upstream, gateway)))
        }
    }
}

fn tokened(
    to: SocketAddr,
    method: &str,
    path: &str,
    token: u64,
    body: &str,
) -> Result<Reply, String> {
    let token = token.to_string();
    http::ask(to, method, path, &[("x-fencing-token", &token)], body)
}

/// Fails if the legitimate request does not work: otherwise a failed attack would prove nothing.
fn control(reply: &Reply, expected: u16) -> Result<(), String> {
    if reply.status == expected {
        Ok(())
    } else {
        Err(format!("a control got {}: {}", reply.status, reply.body))
    }
}

fn spellings(harness: &Harness) -> Result<Outcome, String> {
    let (upstream, gateway) = match fenced(harness, &[])? {
        Ok(fenced) => fenced,
        Err(outcome) => return Ok(outcome),
    };
    let to = gateway.address;
    control(&tokened(to, "PUT", "/accounts/7", 10, "current")?, 200)?;
    control(&tokened(to, "PUT", "/accounts/7", 5, "stale")?, 412)?;
    let all = [
        "07", "007", "+7", "%2B7", "7.0", "0_7", "%207", "7%20", "%097", "7;v=1", "%2537", "%37",
        "7/", "7%0A",
    ];
    let mut overwritten = Vec::new();
    for spelling in all {
        // A closed connection also counts as a refusal.
        let _ = tokened(to, "PUT", &format!("/accounts/{spelling}"), 5, "stale");
        if upstream.value(7)? != "current" {
            overwritten.push(spelling);
            control(&tokened(to, "PUT", "/accounts/7", 10, "current")?, 200)?;
        }
    }
    Ok(Outcome::measured(
        overwritten.is_empty(),
        format!(
            "{} of {} overwrote{}",
            overwritten.len(),
            all.len(),
            named(&overwritten)
        ),
        "none",
    ))
}

fn hidden_writes(harness: &Harness) -> Result<Outcome, String> {
    let hidden = "PUT /accounts/7 HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nstale";
    let Some(upstream) = Upstream::start(harness)? else {
        return Ok(Outcome::not_run(NO_UPSTREAM));
    };
    let body = |method: &'static str| (method, None, hidden);
    let over = |name: &'static str| ("GET", Some((name, "PUT")), "");
    let mut written = Vec::new();
    for (at, (method, header, body)) in [
        body("GET"),
        body("HEAD"),
        body("OPTIONS"),
        body("TRACE"),
        over("x-http-method-override"),
        over("x-http-method"),
        over("x-method-override"),
    ]
    .into_iter()
    .enumerate()
    {
        // A new gateway for each attack: after a request that it did not see, a gateway's answers are out of step.
        let gateway = upstream.gateway(harness, &format!("gateway-{at}"), &[])?;
        let to = gateway.address;
        control(&tokened(to, "PUT", "/accounts/7", 10, "current")?, 200)?;
        control(&http::ask(to, "PUT", "/accounts/7", &[], "x")?, 428)?;
        let headers: Vec<_> = header.into_iter().collect();
        let mut connection = Connection::to(to)?;
        if connection
            .send(method, "/accounts/7", &headers, body)
            .is_ok()
        {
            let _ = connection.head();
        }
        // The upstream reads the body as its next request, after it has answered the first.
        let overwritten = || upstream.value(7).is_ok_and(|value| value != "current");
        if until(Duration::from_millis(500), overwritten) {
            written.push(header.map_or(method, |(name, _)| name));
        }
    }
    Ok(Outcome::measured(
        written.is_empty(),
        format!(
            "{} of 7 wrote without a token{}",
            written.len(),
            named(&written)
        ),
        "none",
    ))
}

const NO_UPSTREAM: &str = "python3 is not installed: an upstream is needed";

/// Sets every time-out of the gateway to 3 s or less.
const TIMES: [&str; 10] = [
    "--wait",
    "1s",
    "--settle",
    "1s",
    "--answer-timeout",
    "3s",
    "--idle-timeout",
    "3s",
    "--connect-timeout",
    "3s",
];

fn stopped_client(harness: &Harness) -> Result<Outcome, String> {
    let (_upstream, gateway) = match fenced(harness, &TIMES)? {
        Ok(fenced) => fenced,
        Err(outcome) => return Ok(outcome),
    };
    let to = gateway.address;
    let mut unread = Connection::to(to)?;
    unread.send("PUT", "/answers/7", &[("x-fencing-token", "5")], "x")?;
    pause(Duration::from_millis(500));
    let (first, refused_first) = successor(to, "/accounts/7", || Ok(()))?;
    drop(unread);
    let mut slow = Connection::to(to)?;
    let headers = [("x-fencing-token", "5"), ("content-length", "100000")];
    slow.send("PUT", "/accounts/8", &headers, "x")?;
    pause(Duration::from_millis(500));
    let mut last = now();
    let (second, refused_second) = successor(to, "/accounts/8", || {
        if elapsed(last) > Duration::from_secs(2) {
            last = now();
            // The connection may have been cut by now, as intended.
            let _ = slow.send_raw(b"x");
        }
        Ok(())
    })?;
    let describe = |time: Option<Duration>, refused: u32| match time {
        Some(time) => format!(
            "admitted after {:.0} s and {refused} refusals",
            time.as_secs_f64()
        ),
        None => format!(
            "not admitted in {} s, {refused} refusals",
            PATIENCE.as_secs()
        ),
    };
    Ok(Outcome::measured(
        first.is_some() && second.is_some(),
        format!(
            "unread answer: {}; slow request: {}",
            describe(first, refused_first),
            describe(second, refused_second)
        ),
        format!(
            "admitted within {} s, with all time-outs at 3 s",
            PATIENCE.as_secs()
        ),
    ))
}

const PATIENCE: Duration = Duration::from_secs(45);

/// A successor that claims until it is admitted: after what time, and after how many refusals.
fn successor(
    to: SocketAddr,
    path: &str,
    mut meanwhile: impl FnMut() -> Result<(), String>,
) -> Result<(Option<Duration>, u32), String> {
    let begun = now();
    let mut refused = 0;
    while elapsed(begun) < PATIENCE {
        meanwhile()?;
        if tokened(to, "GET", path, 6, "")?.status == 200 {
            return Ok((Some(elapsed(begun)), refused));
        }
        refused += 1;
        pause(Duration::from_millis(100));
    }
    Ok((None, refused))
}

fn early_503(harness: &Harness) -> Result<Outcome, String> {
    let (upstream, gateway) = match fenced(harness, &["--settle", "4s", "--wait", "8s"])? {
        Ok(fenced) => fenced,
        Err(outcome) => return Ok(outcome),
    };
    let to = gateway.address;
    control(&tokened(to, "PUT", "/accounts/7", 4, "before")?, 200)?;
    let early = tokened(to, "PUT", "/late/7", 5, "stale")?;
    let begun = now();
    let mut written = false;
    until(Duration::from_secs(20), || {
        written =
            tokened(to, "PUT", "/accounts/7", 6, "current").is_ok_and(|reply| reply.status == 200);
        written
    });
    if !written {
        return Err("the successor was never admitted".to_owned());
    }
    let after = elapsed(begun);
    // A write that got 503 takes effect 1.5 s after it was sent.
    pause(Duration::from_secs(2));
    let value = upstream.value(7)?;
    Ok(Outcome::measured(
        value == "current",
        format!(
            "after {}, the successor was admitted after {:.1} s; the account ends as {value:?}",
            early.status,
            after.as_secs_f64()
        ),
        "the successor's",
    ))
}
