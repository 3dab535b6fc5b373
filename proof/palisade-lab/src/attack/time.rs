//! Rows 7, 11 and 13: leases that live too long or end too early.

use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use super::failure::text;
use super::harness::{Harness, Program, Start, elapsed, now, pause, until};
use super::http::{self, Connection, JSON};
use super::outcome::{Attack, Outcome};
use super::plain::{self, Session};
use crate::chaos::fixture::{Cut, Namespaces};

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "busy-server-keeps-dead-lease",
        row: 7,
        does: "a session requests 40 KB of listings every 1.3 s, so that a dead holder's lease gets grace again and again",
        bounds: "3 s for the control, 20 s under attack",
        run: busy_server,
    },
    Attack {
        name: "vanished-waiter",
        row: 11,
        does: "the machines of two waiters vanish without a FIN: their network is cut",
        bounds: "90 s",
        run: vanished_waiter,
    },
    Attack {
        name: "short-leases-under-stall",
        row: 13,
        does: "the server is stopped for 0.3 to 0.6 s under leases of 200 ms whose renewals wait in its socket",
        bounds: "8 rounds",
        run: short_leases,
    },
];

fn busy_server(harness: &Harness) -> Result<Outcome, String> {
    let server = harness.serve("data")?;
    plain::fill(server.address)?;
    let control = until_free(&server, "control", || Ok(()))?;
    let control = control.ok_or("the control's lease never ended")?;
    // On a server without other sessions, the ordering thread itself serves this one.
    let mut session = Session::to(server.address)?;
    session.discard()?;
    let frame = plain::frame((0..3_800).map(|_| plain::listing()).collect());
    let mut last = None;
    let attacked = until_free(&server, "attacked", || {
        if last.is_none_or(|last| elapsed(last) > Duration::from_millis(1_300)) {
            last = Some(now());
            // Opens the session again if the server ended it.
            if session.send(&frame).is_err() {
                session = Session::to(server.address)?;
                session.discard()?;
            }
        }
        Ok(())
    })?;
    let limit = control * 3;
    let end = match attacked {
        Some(time) => format!("ended after {:.1} s", time.as_secs_f64()),
        None => format!("did not end within {} s", PATIENCE.as_secs()),
    };
    Ok(Outcome::measured(
        attacked.is_some_and(|time| time <= limit),
        format!(
            "a lease of {LEASE_MS} ms {end}; without the attack after {:.1} s",
            control.as_secs_f64()
        ),
        "3 times the time without",
    ))
}

const LEASE_MS: u64 = 2_000;
const PATIENCE: Duration = Duration::from_secs(20);

/// How long the lock of an idle holder stays taken while something else runs.
fn until_free(
    server: &Program,
    lock: &str,
    mut meanwhile: impl FnMut() -> Result<(), String>,
) -> Result<Option<Duration>, String> {
    http::grant(server.address, lock, "dead", LEASE_MS)?;
    let begun = now();
    let mut failed = None;
    let mut next = Connection::to(server.address)?;
    let free = until(PATIENCE, || {
        let done = meanwhile().and_then(|()| next.acquire(lock, "next", 60_000));
        match done {
            Ok(reply) => reply.status == 200,
            Err(why) => {
                failed = Some(why);
                true
            }
        }
    });
    match failed {
        Some(why) => Err(why),
        None => Ok(free.then(|| elapsed(begun))),
    }
}

fn vanished_waiter(harness: &Harness) -> Result<Outcome, String> {
    if harness.is_secure() {
        return Ok(Outcome::not_run(
            "it is about TCP, and the tunnel that speaks TLS would stand between",
        ));
    }
    let namespaces = match Namespaces::build(&harness.path("")) {
        Ok(namespaces) => namespaces,
        Err(why) => {
            return Ok(Outcome::not_run(format!(
                "network namespaces cannot be made: {why}"
            )));
        }
    };
    let mut start = Start::new("serve", &harness.path("data")).with(&["--insecure"]);
    start.listen = namespaces.authority();
    let server = harness.start(&start)?;
    http::grant(server.address, "job", "holder", 3_600_000)?;
    // One waiter for each protocol, each in its own network.
    let inside = |namespace: usize, words: &[&str]| {
        let mut all = namespaces.prefix(namespace).unwrap_or_default();
        all.extend(words.iter().map(|word| (*word).to_owned()));
        let (sender, _) = channel();
        harness.other(&all, &[], move |line| drop(sender.send(line)))
    };
    let binary = harness.binary.display().to_string();
    let url = server.url();
    let _session = inside(
        0,
        &[
            &binary,
            "acquire",
            "job",
            "--wait",
            "1h",
            "--authority",
            &url,
        ],
    )?;
    let request = "import socket,sys\ns=socket.create_connection((sys.argv[1],int(sys.argv[2])))\n\
                   b=b'{\"client_id\":\"w\",\"lease_duration_ms\":60000,\"wait_ms\":3600000}'\n\
                   s.sendall(b'POST /v1/locks/job/acquire HTTP/1.1\\r\\nhost: '+sys.argv[1].encode()+b':'+sys.argv[2].encode()+\
                   b'\\r\\ncontent-type: application/json\\r\\ncontent-length: %d\\r\\n\\r\\n'%len(b)+b)\ns.recv(1)\n";
    let (ip, port) = (
        server.address.ip().to_string(),
        server.address.port().to_string(),
    );
    let _call = inside(1, &["python3", "-c", request, &ip, &port])?;
    let waiters = || {
        let shown = http::get(server.address, "/v1/locks/job").map(|reply| reply.json());
        shown.ok().and_then(|shown| shown["waiters"].as_u64())
    };
    if !until(Duration::from_secs(20), || waiters() == Some(2)) {
        let why = format!(
            "{:?} of 2 are waiting: {}",
            waiters(),
            harness.others_last_words()
        );
        return Err(why);
    }
    namespaces.cut(0, Cut::Both)?;
    namespaces.cut(1, Cut::Both)?;
    let begun = now();
    let gone = until(Duration::from_secs(90), || waiters() == Some(0));
    let left = waiters().unwrap_or(0);
    Ok(Outcome::measured(
        gone,
        format!(
            "{left} of 2 still queued {} s after they vanished",
            elapsed(begun).as_secs()
        ),
        "none after 90 s",
    ))
}

fn short_leases(harness: &Harness) -> Result<Outcome, String> {
    const TTL_MS: u64 = 200;
    let server = harness.serve("data")?;
    let (mut ended, mut rounds) = (0, 0);
    for stall_ms in [300, 350, 400, 450, 500, 550, 600, 300] {
        let mut holder = Connection::to(server.address)?;
        let begun = now();
        let lock = format!("lock-{rounds}");
        let reply = holder.acquire(&lock, "c", TTL_MS)?;
        if reply.status == 400 {
            let refused = format!("leases of {TTL_MS} ms are refused: {}", reply.body);
            return Ok(Outcome::measured(true, refused, "refused, or none ended"));
        }
        let body = json!({"lock_token": reply.json()["lock_token"]}).to_string();
        server.process.stop();
        let stopped = is_stopped(server.process.id());
        // If this machine was too slow, the lease rightly ended before the stall.
        let counts = stopped && elapsed(begun) < Duration::from_millis(TTL_MS / 2);
        holder.send("POST", &format!("/v1/locks/{lock}/renew"), &JSON, &body)?;
        pause(Duration::from_millis(stall_ms));
        server.process.send(Signal::CONT);
        let renewed = holder.receive()?;
        if counts {
            rounds += 1;
            ended += u32::from(renewed.status != 200);
        }
    }
    if rounds == 0 {
        return Err(text(
            "this machine is too slow to stop a server within 100 ms of a grant",
        ));
    }
    Ok(Outcome::measured(
        ended == 0,
        format!("{ended} of {rounds} leases of {TTL_MS} ms ended while the server was stopped"),
        "refused, or none ended",
    ))
}

fn is_stopped(pid: u32) -> bool {
    until(Duration::from_secs(1), || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('T'))
    })
}
