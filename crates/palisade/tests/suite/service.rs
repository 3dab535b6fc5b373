//! A server under systemd: the messages of `Type=notify` and `WatchdogSec=`, and the unit file.

use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::common::{SOON, palisade, send, text};

/// The next messages, until `wanted` was among them; gives them all.
fn messages(manager: &UnixDatagram, wanted: &str) -> Vec<String> {
    let mut told = Vec::new();
    loop {
        let mut bytes = [0; 256];
        let length = manager
            .recv(&mut bytes)
            .unwrap_or_else(|_| panic!("{told:?}"));
        for message in text(&bytes[..length]).lines() {
            told.push(message.to_owned());
        }
        if told.iter().any(|message| message == wanted) {
            return told;
        }
    }
}

#[test]
fn systemd_is_told_that_a_server_serves_is_alive_and_stops() {
    let upstream = "http://127.0.0.1:9";
    for server in [
        &["serve", "--listen", "127.0.0.1:0"][..],
        &["store", "--listen", "127.0.0.1:0"],
        &[
            "gateway",
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "--upstream",
            upstream,
        ],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("notify");
        let manager = UnixDatagram::bind(&socket).unwrap();
        manager.set_read_timeout(Some(SOON)).unwrap();
        let mut child = palisade()
            .args(server)
            .current_dir(dir.path())
            .env("NOTIFY_SOCKET", &socket)
            .env("WATCHDOG_USEC", "100000")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let is_lock_server = server[0] == "serve";
        assert_eq!(
            messages(&manager, "READY=1")
                .into_iter()
                .filter(|message| message != "WATCHDOG=1")
                .collect::<Vec<_>>(),
            ["READY=1"]
        );
        if is_lock_server {
            for _ in 0..3 {
                messages(&manager, "WATCHDOG=1");
            }
        }
        send(child.id().try_into().unwrap(), Signal::TERM);
        messages(&manager, "STOPPING=1");
        assert!(child.wait().unwrap().success(), "{server:?}");
    }
}

/// A manager that is itself stopped must not stop the server. Its queue is full, so that already the first message waits.
#[test]
fn a_manager_that_reads_nothing_stops_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("notify");
    let _manager = UnixDatagram::bind(&socket).unwrap();
    let full = UnixDatagram::unbound().unwrap();
    full.set_nonblocking(true).unwrap();
    while full.send_to(b"full", &socket).is_ok() {}
    let mut child = palisade()
        .args(["serve", "--listen", "127.0.0.1:0"])
        .current_dir(dir.path())
        .env("NOTIFY_SOCKET", &socket)
        .env("WATCHDOG_USEC", "20000")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let url = lines.find_map(|line| {
        let line = line.unwrap();
        let words = line.split_whitespace();
        words
            .filter(|word| word.starts_with("http://"))
            .map(str::to_owned)
            .next()
    });
    let url = url.unwrap();
    // Longer than it takes to fill the threads of a server whose messages wait in them.
    for _ in 0..20 {
        let asked = palisade()
            .args(["ls", "--authority", &url])
            .output()
            .unwrap();
        assert!(asked.status.success(), "{}", text(&asked.stderr));
    }
    send(child.id().try_into().unwrap(), Signal::TERM);
    assert!(child.wait().unwrap().success());
}

#[test]
fn systemd_has_nothing_to_say_about_the_unit_file() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/palisade.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    let here = unit.replace("/usr/bin/palisade", env!("CARGO_BIN_EXE_palisade"));
    assert_ne!(here, unit);
    let judge = |unit: &str| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("palisade.service");
        std::fs::write(&file, unit).unwrap();
        let said = Command::new("systemd-analyze")
            .args(["verify", "--man=no", "--recursive-errors=no"])
            .arg(file)
            .output()
            .unwrap();
        (said.status.success(), text(&said.stderr))
    };
    let (passed, said) = judge(&here);
    assert!(passed && said.is_empty(), "{said}");
    // Control.
    let (_, said) = judge(&here.replace("WatchdogSec=120", "WatchdogSec=soon"));
    assert!(said.contains("soon"), "{said}");
}
