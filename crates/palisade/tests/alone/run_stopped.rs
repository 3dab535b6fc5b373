//! `palisade run`, stopped at a renewal: many runs at a time, which keep the machine busy.

use crate::common::{Server, exists, status, stop, text, until, until_dead};
use rustix::process::Signal;

/// Stops the run when a renewal was acknowledged but may not have reached the watchdog, and continues it between the
/// old deadline, when the watchdog kills, and the new one.
fn stopped_at_the_first_renewal(server: &Server, lock: &str) {
    let hook = format!("echo $PALISADE_LOST_REASON > {lock}.lost");
    let job = format!("echo $$ >> {lock}.pids; exec sleep 1000");
    let run = server.run(&[
        lock,
        "--ttl",
        "1500ms",
        "--on-lost",
        &hook,
        "--",
        "sh",
        "-c",
        &job,
    ]);
    let pids = server.pids(&format!("{lock}.pids"), 1);
    let left = || {
        server.show(lock)["holder"]["remaining_ms"]
            .as_u64()
            .unwrap()
    };
    let mut before = left();
    until("a renewal", || {
        let now = left();
        std::mem::replace(&mut before, now) < now
    });
    stop(run.pid());
    until_dead(&pids);
    run.send(Signal::CONT);
    let output = run.end();
    let said = text(&output.stderr);
    assert_eq!(status(&output), 123, "{lock}: {said}");
    assert!(said.contains("is lost"), "{lock}: {said}");
    assert!(exists(&server.file(&format!("{lock}.lost"))), "{lock}");
}

#[test]
fn a_kill_by_the_watchdog_is_never_reported_as_the_jobs_own_end() {
    let server = Server::start();
    std::thread::scope(|scope| {
        for lane in 0..4 {
            let server = &server;
            scope.spawn(move || {
                for round in 0..5 {
                    stopped_at_the_first_renewal(server, &format!("job-{lane}-{round}"));
                }
            });
        }
    });
}
