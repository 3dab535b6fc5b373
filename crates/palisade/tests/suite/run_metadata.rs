//! The metadata of `palisade run`, and the signals that come before its job.

use std::os::unix::process::CommandExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::time::Duration;

use palisade_client::clock::{BootClock, Clock as _};
use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::common::{Run, Server, status, text, until};

/// The metadata of a lock while a job holds it.
fn shown(server: &Server, arguments: &[&str]) -> Value {
    let job = [&["job"], arguments, &["--", "sleep", "1000"]].concat();
    let run = server.run(&job);
    let mut holder = Value::Null;
    until("the job", || {
        holder = server.show("job")["holder"].clone();
        !holder.is_null()
    });
    let listed = text(&server.output(&["ls"]).stdout);
    let named = holder["metadata"]
        .as_str()
        .map(|name| format!("  {name}\n"));
    assert!(
        named.is_none_or(|named| listed.ends_with(&named)),
        "{listed}"
    );
    run.send(Signal::TERM);
    run.end();
    holder["metadata"].clone()
}

#[test]
fn a_job_is_named_by_its_user_host_and_program_unless_that_is_set_or_switched_off() {
    let server = Server::start();
    let id = std::process::Command::new("id")
        .arg("-un")
        .output()
        .unwrap();
    let (user, host) = (text(&id.stdout), rustix::system::uname());
    let name = format!(
        "{}@{} sleep",
        user.trim(),
        host.nodename().to_str().unwrap()
    );
    assert_eq!(shown(&server, &[]), name.as_str());
    assert_eq!(shown(&server, &["--metadata", "nightly"]), "nightly");
    assert_eq!(shown(&server, &["--metadata", ""]), Value::Null);
    // The history keeps it.
    until("the history", || {
        let told = text(&server.output(&["history", "job"]).stdout);
        told.contains(&name) && told.contains("nightly")
    });
}

/// A hangup reaches the whole group of a closed terminal, and comes at any moment of the start. The job's own end by the
/// signal is the control; a watchdog that stays in the group until its own start makes some of these runs end with 125.
#[test]
fn a_hangup_at_any_moment_of_the_start_ends_the_run_like_its_job() {
    const HUP: i32 = 1;
    let server = Server::start();
    for step in 0..160_u64 {
        let mut command = server.palisade(&["run", "job", "--", "sleep", "1000"]);
        command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0);
        let child = command.spawn().unwrap();
        let group = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        let at = BootClock
            .now()
            .after(Duration::from_micros(250 * step).into());
        while BootClock.now() < at {
            std::hint::spin_loop();
        }
        rustix::process::kill_process_group(group, Signal::HUP).unwrap();
        let mut ended = Run::keep(child);
        until("the end", || ended.is_over());
        let output = ended.end();
        // Before it can handle signals, it dies of it.
        let died = output.status.signal() == Some(HUP) || output.status.code() == Some(128 + HUP);
        assert!(
            died,
            "step {step}: {}: {}",
            output.status,
            text(&output.stderr)
        );
    }
    // Nothing of them holds the lock.
    let next = server.output(&["run", "job", "--wait", "20s", "--", "true"]);
    assert_eq!(status(&next), 0, "{}", text(&next.stderr));
}
