//! `palisade run --on-deadline freeze`: a job writes nothing after its deadline, and goes on only under the same token.
//!
//! real time: these tests also pass beside busy loops (`cargo xtask test --loaded`).

use std::fs;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use crate::common::proxy::Proxy;
use crate::common::{
    Run, SOON, Server, children, exists, is_alive, is_stopped, living, now, palisade, send, stat,
    status, stop, text, until_in, until_time,
};
use palisade_core::Timestamp;
use rustix::process::Signal;

/// The lease of a job. In parts of it a renewal has to be answered, and the job to be seen stopped; so it is long where starting a
/// job takes long: a control in the same run.
fn ttl() -> Duration {
    static TTL: LazyLock<Duration> = LazyLock::new(|| {
        let began = now();
        drop(Frozen::start(&["--ttl", "1h"]));
        let took = now().since(began).as_millis();
        Duration::from_millis(6 * took).max(Duration::from_secs(4))
    });
    *TTL
}

/// Waits for something that may have to wait for a deadline, or a lease's end.
fn until(what: &str, holds: impl FnMut() -> bool) {
    until_in(SOON + 3 * ttl(), what, holds);
}

/// Waits for the end of a job, which a `--timeout` of four leases may bring.
fn until_dead(pids: &[i32]) {
    until_in(SOON + 4 * ttl(), &format!("the end of {pids:?}"), || {
        living(pids).is_empty()
    });
}

/// A job of three processes and an endless row of short ones. Each of its eight threads writes the time down every
/// millisecond: one process has left the group for a session of its own, and none ends at SIGHUP. It ends with 7 when
/// there is a file `stop`.
const BEATS: &str = r#"
import os, signal, subprocess, sys, threading, time
signal.signal(signal.SIGHUP, signal.SIG_IGN)
kind = sys.argv[1]
if kind == "first":
    for other in ("child", "daemon"):
        subprocess.Popen([sys.executable, __file__, other], start_new_session=other == "daemon")
    subprocess.Popen(["sh", "-c", "trap '' HUP; while [ -e beats.py ]; do /bin/true; sleep 0.002; done"])
def beat(number):
    out = os.open(f"beats.{kind}.{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        os.write(out, b"%d\n" % time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        time.sleep(0.001)
for number in range(4 if kind == "first" else 2):
    threading.Thread(target=beat, args=(number,), daemon=True).start()
with open("pids", "a") as pids:
    pids.write(f"{os.getpid()}\n")
# A job that a failed test leaves behind ends with its folder.
while os.path.exists(__file__) and not os.path.exists("stop"):
    time.sleep(0.01)
os._exit(7)
"#;

/// A server with a job that is frozen at its deadline, or ended.
struct Frozen {
    server: Server,
    proxy: Proxy,
    run: Run,
    /// The first process, its child in the group, and the one that left the group.
    pids: Vec<i32>,
}

/// Without a terminal, as under systemd or cron.
fn start(server: &Server, url: &str, flags: &[&str]) -> Run {
    fs::write(server.file("beats.py"), BEATS).unwrap();
    let mut command = Command::new("setsid");
    command.arg(palisade().get_program());
    command.args([
        "run",
        "job",
        "--on-lost",
        "echo $PALISADE_LOST_REASON > lost",
    ]);
    command
        .args(flags)
        .args(["--", "python3", "beats.py", "first"]);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"PALISADE_") {
            command.env_remove(name);
        }
    }
    command.env("PALISADE_AUTHORITY", url).stdin(Stdio::null());
    Run::start(command.current_dir(server.dir.path()))
}

const FREEZE: [&str; 2] = ["--on-deadline", "freeze"];

/// The flags of a lease of [`ttl`]: it is renewed after a third, and the job is stopped after three fifths.
fn lease() -> [String; 4] {
    let ttl = ttl().as_millis();
    let grace = ttl * 2 / 5;
    [
        "--ttl".into(),
        format!("{ttl}ms"),
        "--grace".into(),
        format!("{grace}ms"),
    ]
}

impl Frozen {
    /// A job that freezes at its deadline.
    fn new() -> Frozen {
        Frozen::with(&FREEZE)
    }

    fn with(flags: &[&str]) -> Frozen {
        let lease = lease();
        let lease: Vec<&str> = lease.iter().map(String::as_str).collect();
        Frozen::start(&[&lease, flags].concat())
    }

    fn start(flags: &[&str]) -> Frozen {
        let server = Server::start();
        let proxy = Proxy::to(&server.url);
        let run = start(&server, &proxy.url, flags);
        let mut pids = server.pids("pids", 3);
        // They wrote themselves down as each was ready.
        pids.sort_by_key(|pid| {
            let its = stat(*pid).unwrap();
            (its.parent != run.pid(), its.group == *pid)
        });
        until_in(SOON * 3, "beats of every thread", || {
            beats(&server).len() == 8
        });
        Frozen {
            server,
            proxy,
            run,
            pids,
        }
    }

    /// Freezes the network and waits until the job is frozen. No acknowledged renewal was sent after the returned time.
    fn until_frozen(&self) -> Timestamp {
        let last = now();
        self.proxy.freeze();
        until("the job to be stopped", || {
            self.pids.iter().all(|pid| is_stopped(*pid))
        });
        last
    }
}

/// The times that each thread of the job has written.
fn beats(server: &Server) -> Vec<Vec<u64>> {
    let files = fs::read_dir(server.dir.path()).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let beats = files.filter(|file| {
        let name = file.file_name().unwrap().to_str().unwrap();
        name.starts_with("beats.") && Path::new(name).extension().is_none_or(|it| it != "py")
    });
    let times = beats.map(|file| -> Vec<u64> {
        let text = fs::read_to_string(file).unwrap();
        // The last line may be incomplete.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| line.parse().unwrap()).collect()
    });
    times.filter(|times| !times.is_empty()).collect()
}

/// How many beats came in a time.
fn between(server: &Server, from: Timestamp, to: Timestamp) -> usize {
    let inside = |at: &u64| (from.as_nanos()..to.as_nanos()).contains(at);
    beats(server)
        .iter()
        .flatten()
        .filter(|at| inside(at))
        .count()
}

fn after(at: Timestamp, duration: Duration) -> Timestamp {
    at.after(duration.into())
}

/// The time that nothing can be written after, and a time long after it.
fn deadline(last: Timestamp) -> (Timestamp, Timestamp) {
    (after(last, ttl()), after(last, 3 * ttl()))
}

#[test]
fn a_frozen_job_writes_nothing_after_the_deadline_and_goes_on_under_its_token() {
    let frozen = Frozen::new();
    // Control: under a lease that lasts, the same job writes through the same time.
    let lasting = Server::start();
    let control = start(&lasting, &lasting.url, &["--ttl", "1h"]);
    lasting.pids("pids", 3);
    let server = &frozen.server;
    let last = now();
    stop(server.pid());
    stop(lasting.pid());
    let (end, later) = deadline(last);
    until_time(later);
    assert_eq!(between(server, end, later), 0, "nothing after the deadline");
    assert!(between(server, last, end) > 0 && between(&lasting, end, later) > 0);
    assert_eq!(living(&frozen.pids), frozen.pids);
    send(server.pid(), Signal::CONT);
    until("the job to go on", || between(server, later, now()) > 0);
    until("every process to go on", || {
        !frozen.pids.iter().any(|pid| is_stopped(*pid))
    });
    assert_eq!(
        server.show("job")["holder"]["fencing_token"],
        1,
        "the same grant"
    );
    // It is renewed as before.
    let renewed = now();
    until_time(after(renewed, 2 * ttl()));
    assert!(between(server, after(renewed, ttl()), after(renewed, 2 * ttl())) > 0);
    fs::write(server.file("stop"), "").unwrap();
    let output = frozen.run.end();
    let said = text(&output.stderr);
    assert_eq!(status(&output), 7, "{said}");
    assert!(
        said.contains("The command is frozen") && said.contains("the command goes on after"),
        "{said}"
    );
    assert!(!exists(&server.file("lost")));
    drop(control);
}

/// The control: the default.
#[test]
fn without_the_option_the_job_is_dead_at_the_deadline() {
    for flags in [&[][..], &["--on-deadline", "kill"]] {
        let job = Frozen::with(flags);
        let last = now();
        stop(job.server.pid());
        until_dead(&job.pids);
        assert!(now() < after(last, ttl()), "{flags:?}");
        send(job.server.pid(), Signal::CONT);
        assert_eq!(status(&job.run.end()), 123);
    }
}

#[test]
fn a_job_whose_lock_was_broken_while_it_was_frozen_is_killed() {
    let mut frozen = Frozen::new();
    // So that the lease does not expire before.
    stop(frozen.server.pid());
    let last = frozen.until_frozen();
    let (end, later) = deadline(last);
    let server = &mut frozen.server;
    server.kill();
    server.restart();
    let broken = server.output(&["break", "job", "--token", "1", "--reason", "test"]);
    assert_eq!(status(&broken), 0, "{}", text(&broken.stderr));
    until_time(later);
    assert_eq!(living(&frozen.pids), frozen.pids, "control: not before");
    frozen.proxy.thaw();
    until_dead(&frozen.pids);
    let output = frozen.run.end();
    let said = text(&output.stderr);
    assert_eq!(status(&output), 123, "{said}");
    assert!(said.contains("revoked by an operator"), "{said}");
    assert_eq!(between(server, end, now()), 0);
    let lost = fs::read_to_string(server.file("lost")).unwrap();
    assert_eq!(lost, "revoked\n");
}

#[test]
fn a_job_whose_lease_expired_while_it_was_frozen_is_killed_and_the_next_holder_is_alone() {
    let frozen = Frozen::new();
    let server = &frozen.server;
    let next = server.run(&["job", "--wait", "1m", "--", "sh", "-c", "exec sleep 1000"]);
    until("the next to wait", || server.show("job")["waiters"] == 1);
    let last = frozen.until_frozen();
    until("the next grant", || {
        server.show("job")["holder"]["fencing_token"] == 2
    });
    let granted = now();
    until_time(after(granted, ttl()));
    assert_eq!(living(&frozen.pids), frozen.pids);
    frozen.proxy.thaw();
    until_dead(&frozen.pids);
    assert_eq!(status(&frozen.run.end()), 123);
    assert_eq!(between(server, deadline(last).0, now()), 0);
    assert_eq!(server.show("job")["holder"]["fencing_token"], 2);
    drop(next);
}

#[test]
fn a_job_that_somebody_else_continues_is_killed() {
    for at in 0..3 {
        let frozen = Frozen::new();
        let (end, later) = deadline(frozen.until_frozen());
        until_time(later);
        assert_eq!(living(&frozen.pids), frozen.pids, "control: not before");
        assert_eq!(between(&frozen.server, end, later), 0);
        send(frozen.pids[at], Signal::CONT);
        until_dead(&frozen.pids);
        let output = frozen.run.end();
        let said = text(&output.stderr);
        assert_eq!(status(&output), 123, "{said}");
        assert!(said.contains("another program has continued"), "{said}");
    }
}

/// The wrapper sees only stopped threads, before and after; the authority acknowledges the token.
#[test]
fn a_job_that_ran_for_a_moment_nobody_looked_is_killed_in_spite_of_its_token() {
    let frozen = Frozen::new();
    let server = &frozen.server;
    let last = now();
    stop(server.pid());
    let (end, later) = deadline(last);
    until_time(later);
    assert_eq!(living(&frozen.pids), frozen.pids);
    stop(frozen.run.pid());
    send(frozen.pids[1], Signal::CONT);
    until("a beat", || between(server, end, now()) > 0);
    stop(frozen.pids[1]);
    send(server.pid(), Signal::CONT);
    until("the server", || {
        server.show("job")["holder"]["fencing_token"] == 1
    });
    frozen.run.send(Signal::CONT);
    until_dead(&frozen.pids);
    assert_eq!(status(&frozen.run.end()), 123);
}

#[test]
fn a_frozen_job_dies_with_its_wrapper() {
    let frozen = Frozen::new();
    let (end, later) = deadline(frozen.until_frozen());
    until_time(later);
    assert_eq!(living(&frozen.pids), frozen.pids);
    let watchdog = frozen.run.watchdog();
    // While the watchdog cannot act, too: the kernel continues a stopped group whose parent dies, unless that is in
    // another session.
    stop(watchdog);
    frozen.run.send(Signal::KILL);
    until_dead(&frozen.pids[..1]);
    let died = now();
    until_time(after(died, ttl()));
    assert_eq!(between(&frozen.server, end, now()), 0);
    assert!(
        is_alive(frozen.pids[1]) && is_alive(frozen.pids[2]),
        "control"
    );
    send(watchdog, Signal::CONT);
    until_dead(&frozen.pids);
    until("the watchdog to end", || !is_alive(watchdog));
    assert_eq!(between(&frozen.server, end, now()), 0);
}

#[test]
fn a_frozen_job_outlives_its_watchdog_and_dies_with_the_next_one() {
    let frozen = Frozen::new();
    let (_, later) = deadline(frozen.until_frozen());
    let first = frozen.run.watchdog();
    send(first, Signal::KILL);
    until("another watchdog", || {
        let pid = frozen.run.watchdog();
        // It is ready once it has a session of its own.
        pid != first && stat(pid).is_some_and(|it| it.session == pid)
    });
    until_time(later);
    assert_eq!(living(&frozen.pids), frozen.pids);
    frozen.run.send(Signal::KILL);
    until_dead(&frozen.pids);
}

#[test]
fn a_frozen_job_that_is_told_to_end_is_killed() {
    let frozen = Frozen::new();
    let (end, later) = deadline(frozen.until_frozen());
    until_time(later);
    frozen.run.send(Signal::TERM);
    until_dead(&frozen.pids);
    let output = frozen.run.end();
    let said = text(&output.stderr);
    assert!(said.contains("palisade was told to end it"), "{said}");
    assert_eq!(between(&frozen.server, end, now()), 0);
}

#[test]
fn a_frozen_job_is_killed_when_its_time_is_up() {
    let timeout = format!("{}ms", 4 * ttl().as_millis());
    let job = Frozen::with(&[&FREEZE[..], &["--timeout", &timeout]].concat());
    let (end, _) = deadline(job.until_frozen());
    until_dead(&job.pids);
    let output = job.run.end();
    let said = text(&output.stderr);
    assert!(said.contains("its --timeout has passed"), "{said}");
    assert_eq!(between(&job.server, end, now()), 0);
}

/// One process of the job is stopped by somebody before, and stays so.
#[test]
fn a_process_that_was_stopped_before_stays_stopped() {
    let frozen = Frozen::new();
    stop(frozen.pids[1]);
    let server = &frozen.server;
    let last = now();
    stop(server.pid());
    until_time(deadline(last).1);
    send(server.pid(), Signal::CONT);
    until("the job to go on", || !is_stopped(frozen.pids[0]));
    let on = now();
    until_time(after(on, ttl()));
    assert!(is_stopped(frozen.pids[1]) && is_alive(frozen.pids[0]));
}

/// A shell beside a process that waits in the kernel, for a child of posix_spawn(3) that opens one file after the other
/// before it executes anything. The files are FIFOs: each waits for this test.
#[test]
fn a_child_that_takes_its_time_between_vfork_and_exec_is_waited_for() {
    const FILES: u32 = 10;
    let server = Server::start();
    let job = format!(
        "import os, time\n\
         for number in range({FILES}): os.mkfifo(f'fifo.{{number}}')\n\
         open('pids', 'a').write(f'{{os.getppid()}}\\n{{os.getpid()}}\\n')\n\
         opens = [(os.POSIX_SPAWN_OPEN, 10 + it, f'fifo.{{it}}', os.O_RDONLY, 0) for it in range({FILES})]\n\
         os.posix_spawn('/bin/sleep', ['sleep', '1000'], os.environ, file_actions=opens)\n\
         time.sleep(1000)\n"
    );
    fs::write(server.file("spawn.py"), job).unwrap();
    let lease = lease();
    let lease: Vec<&str> = lease.iter().map(String::as_str).collect();
    let shell = "python3 spawn.py & wait";
    let run = server.run(&[&["job"][..], &lease, &FREEZE, &["--", "sh", "-c", shell]].concat());
    let mut pids = server.pids("pids", 2);
    until("the parent to wait", || {
        stat(pids[1]).unwrap().state == 'D' && children(pids[1]).len() == 1
    });
    pids.extend(children(pids[1]));
    let last = now();
    stop(server.pid());
    until("the shell to be stopped", || is_stopped(pids[0]));
    for number in 0..FILES {
        // More than one look takes.
        until_time(after(now(), ttl() / 100));
        let fifo = server.file(&format!("fifo.{number}"));
        let mut open = fs::OpenOptions::new();
        open.write(true)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
        until("the child to open a file", || open.open(&fifo).is_ok());
    }
    assert!(now() < deadline(last).0, "this machine is too slow");
    until("every process to be stopped", || {
        pids.iter().all(|pid| is_stopped(*pid))
    });
    until_time(deadline(last).1);
    assert_eq!(living(&pids), pids);
    send(server.pid(), Signal::CONT);
    until("every process to go on", || {
        !pids.iter().any(|pid| is_stopped(*pid))
    });
    drop(run);
}

/// Its first process waits for a child that vfork(2) has started and that never executes anything: no signal stops it.
#[test]
fn a_job_that_cannot_be_seen_stopped_is_killed_at_the_deadline() {
    let server = Server::start();
    let job = "import ctypes, os, time\n\
               open('pids', 'a').write(f'{os.getpid()}\\n')\n\
               if ctypes.CDLL(None).vfork() == 0: time.sleep(1000)\n";
    let lease = lease();
    let lease: Vec<&str> = lease.iter().map(String::as_str).collect();
    let flags = [&["job"][..], &lease, &FREEZE, &["--", "python3", "-c", job]].concat();
    let run = server.run(&flags);
    let pids = server.pids("pids", 1);
    until("the parent to wait", || {
        let line = fs::read_to_string(format!("/proc/{}/stat", pids[0])).unwrap();
        line.rsplit_once(')')
            .unwrap()
            .1
            .trim_start()
            .starts_with('D')
    });
    let last = now();
    stop(server.pid());
    until_dead(&pids);
    assert!(now() < after(last, ttl()));
    send(server.pid(), Signal::CONT);
    let output = run.end();
    let said = text(&output.stderr);
    assert_eq!(status(&output), 123, "{said}");
    // Palisade and its watchdog both look at the clock.
    let by_palisade = said.contains("not all of its processes could be stopped");
    let by_watchdog = said.contains("the deadline came before it was seen stopped");
    assert!(by_palisade || by_watchdog, "{said}");
}

#[test]
fn a_lock_without_a_token_cannot_be_frozen() {
    let flags = [
        "run",
        "job",
        "--authority",
        "redlock://127.0.0.1:1",
        "--on-deadline",
        "freeze",
    ];
    let output = palisade()
        .args(flags)
        .args(["--", "true"])
        .output()
        .unwrap();
    assert_eq!(status(&output), 125);
    assert!(text(&output.stderr).contains("omit --on-deadline freeze"));
}
