//! Rows 22 and 23: `palisade run` under signals, and its job's view of the lock.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::Signal;

use super::failure::text;
use super::harness::{Harness, elapsed, now, pause, until};
use super::http;
use super::outcome::{Attack, Outcome};

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "run-stopped-at-renewal",
        row: 22,
        does: "palisade run is stopped right after its first renewal, and continued between the old and the new deadline",
        bounds: "10 rounds of 6 s (short: 3)",
        run: run_stopped_at_renewal,
    },
    Attack {
        name: "password-in-environment",
        row: 23,
        does: "the job of palisade run looks for the authority's password in its environment",
        bounds: "1 round",
        run: password_in_environment,
    },
];

fn words(parts: &[&str]) -> Vec<String> {
    parts.iter().map(|part| (*part).to_owned()).collect()
}

fn run_stopped_at_renewal(harness: &Harness) -> Result<Outcome, String> {
    let server = harness.serve("data")?;
    let rounds = harness.amount(10, 3);
    let (mut wrong, mut endings) = (0, Vec::new());
    for round in 0..rounds {
        let lock = format!("job-{round}");
        let lost = harness.path(&format!("lost-{round}"));
        let hook = format!("touch {}", lost.display());
        let url = server.url();
        let binary = harness.binary.display().to_string();
        let line = [
            &binary,
            "run",
            &lock,
            "--ttl",
            "4s",
            "--grace",
            "100ms",
            "--authority",
            &url,
            "--on-lost",
            &hook,
            "--",
            "sleep",
            "600",
        ];
        let mut run = harness.other(&words(&line), &[], |_| {})?;
        let mut last = u64::MAX;
        let mut watch = http::Connection::to(server.address)?;
        let mut remaining = || {
            let shown = watch.ask("GET", &format!("/v1/locks/{lock}"), &[], "");
            shown.ok()?.json()["holder"]["remaining_ms"].as_u64()
        };
        let granted = until(Duration::from_secs(20), || remaining().is_some());
        let begun = now();
        // The renewal comes at a third of the lease and increases the remaining time.
        let mut renewed = false;
        while granted && !renewed && elapsed(begun) < Duration::from_secs(5) {
            let left = remaining().unwrap_or(0);
            renewed = std::mem::replace(&mut last, left).saturating_add(300) < left;
        }
        if !renewed {
            return Err(format!(
                "no renewal was seen: {}",
                harness.others_last_words()
            ));
        }
        // It has the acknowledgement now, or soon will, and its watchdog does not know about it yet.
        run.stop();
        // The old deadline is 4 s after the grant; the new one is a third of that later.
        pause(Duration::from_millis(4_600).saturating_sub(elapsed(begun)));
        run.resume();
        // Either the job continues, or it is reported as lost.
        until(Duration::from_secs(3), || run.is_over());
        let status = run.status().and_then(|status| status.code());
        let word = match (status, lost.exists()) {
            (None, _) => "the job continues".to_owned(),
            (Some(123), true) => "lost (123, with the hook)".to_owned(),
            (Some(code), hook) => {
                wrong += 1;
                format!("{code}, hook {}", if hook { "run" } else { "not run" })
            }
        };
        if !endings.contains(&word) {
            endings.push(word);
        }
        run.send(Signal::TERM);
        until(Duration::from_secs(10), || run.is_over());
    }
    Ok(Outcome::measured(
        wrong == 0,
        format!(
            "{wrong} of {rounds} mistook their own kill for the job's end: {}",
            endings.join("; ")
        ),
        "the job continues, or 123 and the hook",
    ))
}

fn password_in_environment(harness: &Harness) -> Result<Outcome, String> {
    const PASSWORD: &str = "correct-horse";
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let port = port.map_err(text)?.port().to_string();
    let line = [
        "redis-server",
        "--port",
        &port,
        "--bind",
        "127.0.0.1",
        "--requirepass",
        PASSWORD,
        "--save",
        "",
    ];
    let redis = harness.other(&words(&line), &[], |_| {});
    let there = until(Duration::from_secs(10), || {
        std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_ok()
    });
    let (Ok(_redis), true) = (redis, there) else {
        return Ok(Outcome::not_run(
            "redis-server is not installed: an authority with a password is needed",
        ));
    };
    let url = format!("redis://:{PASSWORD}@127.0.0.1:{port}");
    let (sender, lines) = channel();
    let binary = harness.binary.display().to_string();
    let run = words(&[&binary, "run", "job", "--ttl", "10s", "--", "env"]);
    let mut run = harness.other(&run, &[("PALISADE_AUTHORITY", &url)], move |line| {
        drop(sender.send(line));
    })?;
    if !until(Duration::from_secs(20), || run.is_over()) {
        return Err("palisade run did not end".to_owned());
    }
    let seen = all(&lines);
    if !seen
        .iter()
        .any(|line| line.starts_with("PALISADE_FENCING_TOKEN="))
    {
        return Err(format!(
            "the job did not run: {}",
            harness.others_last_words()
        ));
    }
    let found: Vec<_> = seen.iter().filter(|line| line.contains(PASSWORD)).collect();
    let names: Vec<_> = found
        .iter()
        .filter_map(|line| line.split('=').next())
        .collect();
    Ok(Outcome::measured(
        found.is_empty(),
        if names.is_empty() {
            "no variable of the job has the password".to_owned()
        } else {
            format!("the password is in {}", names.join(", "))
        },
        "in none",
    ))
}

fn all(lines: &Receiver<Option<String>>) -> Vec<String> {
    lines.iter().map_while(|line| line).collect()
}
