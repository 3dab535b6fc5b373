//! People change a data directory behind the server's back: no token is issued twice (rule A5).

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::common::{SOON, now, palisade, status, text, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A server on a directory that outlives it.
struct Serving {
    child: Child,
    url: String,
    log: PathBuf,
}

/// A folder with a data directory and the servers' output.
struct TestDirectory(tempfile::TempDir);

impl TestDirectory {
    fn new() -> TestDirectory {
        TestDirectory(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn serve(&self) -> Serving {
        self.try_serve(&[]).unwrap_or_else(|said| panic!("{said}"))
    }

    /// Starts a server on the data directory, or returns its output if it refused. `limit` goes to `ulimit`.
    fn try_serve(&self, limit: &[&str]) -> Result<Serving, String> {
        self.try_start("serve", limit)
    }

    fn try_start(&self, what: &str, limit: &[&str]) -> Result<Serving, String> {
        let log = self.path(&format!(
            "log-{}",
            fs::read_dir(self.0.path()).unwrap().count()
        ));
        let mut command = Command::new("sh");
        let ulimit = match limit {
            [] => String::new(),
            limit => format!("ulimit {}; ", limit.join(" ")),
        };
        command
            .args(["-c", &format!("{ulimit}exec \"$0\" \"$@\"")])
            .arg(env!("CARGO_BIN_EXE_palisade"))
            .args([what, "--json", "--listen", "127.0.0.1:0", "--data"])
            .arg(self.path("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&log).unwrap());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        match serde_json::from_str::<Value>(&line) {
            Ok(started) if started["url"].is_string() => Ok(Serving {
                child,
                url: started["url"].as_str().unwrap().to_owned(),
                log,
            }),
            _ => {
                assert!(!child.wait().unwrap().success());
                Err(fs::read_to_string(log).unwrap())
            }
        }
    }

    /// Runs a shell script in the folder.
    fn shell(&self, script: &str) {
        let done = Command::new("sh")
            .args(["-ec", script])
            .current_dir(self.0.path())
            .output()
            .unwrap();
        assert!(done.status.success(), "{script}: {done:?}");
    }

    fn palisade(&self, arguments: &[&str]) -> Output {
        let mut command = palisade();
        command.args(arguments).current_dir(self.0.path());
        command.output().unwrap()
    }
}

impl Serving {
    /// The token of a new lock, or nothing if the server did not grant it.
    fn try_grant(&self, lock: &str) -> Option<u64> {
        let answer: Value = serde_json::from_slice(&self.acquire(lock).stdout).ok()?;
        answer["fencing_token"].as_u64()
    }

    fn acquire(&self, lock: &str) -> Output {
        let mut command = palisade();
        command
            .args(["acquire", lock, "-n", "--json", "--ttl", "1m"])
            .env("PALISADE_AUTHORITY", &self.url);
        command.output().unwrap()
    }

    fn grant(&self, lock: &str) -> u64 {
        let give_up = now().after((3 * SOON).into());
        loop {
            let answer = self.acquire(lock);
            if let Ok(granted) = serde_json::from_slice::<Value>(&answer.stdout) {
                return granted["fencing_token"].as_u64().unwrap();
            }
            // A busy machine may not answer in time.
            let said = String::from_utf8_lossy(&answer.stderr);
            assert!(said.contains("unavailable") && now() < give_up, "{said}");
        }
    }

    fn stop(mut self, signal: Signal) -> String {
        kill_process(self.pid(), signal).unwrap();
        self.child.wait().unwrap();
        self.said()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_second_server_is_refused_whatever_happens_to_the_lock_file() {
    let place = TestDirectory::new();
    let server = place.serve();
    for way in [
        "true",
        "mv data/LOCK data/elsewhere",
        "rm -f data/LOCK data/elsewhere",
    ] {
        place.shell(way);
        let said = place.try_serve(&[]).err().expect(way);
        assert!(said.contains("in use"), "{way}: {said}");
    }
    // All files move to another directory: the lock on the identity file moves with them.
    place.shell("mkdir -m 700 moved; mv data/* moved/; rmdir data; mv moved data");
    // The first server may have noticed and stopped; then the files are not as its last run left them.
    let said = place.try_serve(&[]).err().expect("moved files");
    assert!(
        said.contains("in use") || said.contains("not as its last run"),
        "{said}"
    );
    drop(server);
}

/// Ways to put `old` back; each must be refused for the whole directory.
const WAYS: [&str; 7] = [
    "rm -rf data; cp -a old data",
    "rm -f data/*; cp -a old/. data/",
    "cp -a old/. data/",
    "tar -C old -cf - . | tar -C data -xf -",
    "rsync -a old/ data/",
    "rsync -a --delete old/ data/",
    "rsync -a --inplace --delete old/ data/",
];

#[test]
fn an_older_copy_put_back_in_place_is_refused_until_it_is_restored_in_place() {
    for way in WAYS {
        // The copy is of a stopped server that was started again, or of a running server that was killed.
        for same_run in [false, true] {
            let place = TestDirectory::new();
            let mut server = place.serve();
            assert_eq!(server.grant("first"), 1);
            if !same_run {
                server.stop(Signal::TERM);
                place.shell("cp -a data old");
                server = place.serve();
            } else {
                place.shell("cp -a data old");
            }
            let highest = server.grant("second");
            server.stop(Signal::KILL);
            // Otherwise rsync, which compares whole seconds, may copy nothing.
            place.shell("touch -d '1 minute ago' old/log-*");
            place.shell(way);
            let said = place
                .try_serve(&[])
                .err()
                .unwrap_or_else(|| panic!("{way}, same run {same_run}: it was opened"));
            assert!(
                said.contains("palisade restore --in-place") && said.contains("chown"),
                "{way}, same run {same_run}: {said}"
            );
            let restored = place.palisade(&["restore", "--in-place", "data", "--json"]);
            assert!(
                restored.status.success(),
                "{way}, same run {same_run}: {restored:?}"
            );
            let server = place.serve();
            assert!(server.grant("third") > highest + (1 << 40), "it leaps");
            server.stop(Signal::TERM);
            place.serve().stop(Signal::TERM);
        }
    }
}

/// Otherwise `cp` of the directory fails.
#[test]
fn no_file_of_a_new_server_is_renamed_once_it_answers() {
    for _ in 0..10 {
        let place = TestDirectory::new();
        let server = place.serve();
        let names = || {
            let files = fs::read_dir(place.path("data")).unwrap();
            let names = files.map(|file| file.unwrap().file_name());
            names.collect::<BTreeSet<_>>()
        };
        let mut stream = TcpStream::connect(server.url.replace("http://", "")).unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            .unwrap();
        stream.read_exact(&mut [0]).unwrap();
        let first = names();
        server.grant("a");
        assert!(first.contains(OsStr::new("history.redb")), "{first:?}");
        assert!(first.is_subset(&names()), "{first:?}");
    }
}

#[test]
fn a_moved_directory_opens_and_a_touched_one_says_what_to_type() {
    let place = TestDirectory::new();
    let server = place.serve();
    server.grant("a");
    server.stop(Signal::KILL);
    place.shell("mv data there; mv there data");
    let server = place.serve();
    assert_eq!(server.grant("b"), 2);
    server.stop(Signal::TERM);
    place.shell("chmod -R u+rw data");
    let said = place.try_serve(&[]).err().expect("touched");
    assert!(
        said.contains("chmod") && said.contains("--in-place"),
        "{said}"
    );
    let output = place.palisade(&["restore", "--in-place", "data"]);
    assert!(output.status.success(), "{output:?}");
    place.serve();
}

#[test]
fn a_directory_that_vanishes_stops_its_server() {
    for way in [
        "rm -rf data",
        "mv data gone",
        "mv data gone; mkdir data; cp -a gone/. data/",
        "rm -f data/identity",
        "rm -f data/*",
    ] {
        let place = TestDirectory::new();
        let mut server = place.serve();
        server.grant("a");
        place.shell(way);
        until(&format!("{way}: the end of the server"), || {
            server.has_ended()
        });
        let said = server.said();
        assert!(said.contains("while it was open"), "{way}: {said}");
        assert_eq!(server.try_grant("b"), None, "{way}");
    }
}

/// The store uses the same log.
#[test]
fn a_store_refuses_what_the_server_refuses_and_stops_when_its_directory_vanishes() {
    let place = TestDirectory::new();
    let store = place.try_start("store", &[]).unwrap();
    let said = place.try_start("store", &[]).err().expect("a second one");
    assert!(said.contains("in use"), "{said}");
    store.stop(Signal::KILL);
    place.shell("cp -a data old; rm -rf data; cp -a old data");
    let said = place.try_start("store", &[]).err().expect("put back");
    assert!(said.contains("palisade restore --in-place"), "{said}");
    let output = place.palisade(&["restore", "--in-place", "data"]);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && printed.contains("fence rearm"),
        "{output:?}"
    );
    let mut store = place.try_start("store", &[]).unwrap();
    place.shell("rm -rf data");
    until("the end of the store", || store.has_ended());
    assert!(
        store.said().contains("while it was open"),
        "{}",
        store.said()
    );
}

#[test]
fn a_backup_contains_what_was_acknowledged_before_it() {
    for signal in [None, Some(Signal::KILL)] {
        let place = TestDirectory::new();
        let server = place.serve();
        for round in 0..8 {
            let lock = format!("lock-{round}");
            server.grant(&lock);
            let (saved, restored) = (format!("saved-{round}"), format!("restored-{round}"));
            let mut stopped = None;
            if let (Some(signal), 7) = (signal, round) {
                kill_process(server.pid(), signal).unwrap();
                stopped = Some(());
            }
            let output = place.palisade(&["backup", &saved, "--data", "data"]);
            assert!(output.status.success(), "{output:?}");
            let output = place.palisade(&["restore", &saved, "--data", &restored, "--json"]);
            let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(
                answer["locks"],
                round + 1,
                "round {round}, killed {stopped:?}"
            );
        }
    }
}

#[test]
fn a_cut_off_log_end_is_reported_without_guessing() {
    let place = TestDirectory::new();
    let server = place.serve();
    server.grant("a");
    server.stop(Signal::KILL);
    // Cuts most of the last frame, which was acknowledged, and the mark behind it, if there is one.
    let segment = place.path("data/log-00000000000000000001.seg");
    let bytes = fs::read(&segment).unwrap();
    let last = bytes.windows(4).rposition(|w| w == b"PfrD").unwrap();
    let file = fs::OpenOptions::new().write(true).open(&segment).unwrap();
    let zeros = vec![0; bytes.len() - last - 40];
    file.write_all_at(&zeros, last as u64 + 40).unwrap();
    let server = place.serve();
    let said = server.said();
    assert!(
        said.contains("WARN") && said.contains("cannot tell the two apart"),
        "{said}"
    );
    assert!(!said.contains("ever acknowledged"), "{said}");
}

#[test]
fn a_limit_on_the_size_of_files_is_reported() {
    let place = TestDirectory::new();
    let said = place.try_serve(&["-f", "100"]).err().expect("too small");
    assert!(said.contains("File too large"), "{said}");
    // Created without the limit, then run under one that leaves no room for the next segment.
    place.serve().stop(Signal::TERM);
    let server = place.try_serve(&["-f", "4096"]).unwrap();
    until("a message about the missing segment", || {
        server.said().contains("ulimit -f")
    });
    let refused = server.acquire("a");
    let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && printed.contains("ulimit -f"),
        "{printed}"
    );
}

#[test]
fn the_data_directory_is_private() {
    let place = TestDirectory::new();
    let server = place.serve();
    let mode = fs::metadata(place.path("data"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o077, 0);
    server.stop(Signal::TERM);
    assert!(Path::new(&place.path("data/identity")).exists());
}

/// The control is a directory that contains only the file system's own entries.
#[test]
fn a_directory_that_cannot_be_made_is_named_with_the_reason() {
    let dir = TestDirectory::new();
    for what in ["serve", "store"] {
        let start = |data: &str| {
            // In a working directory that is removed.
            let script = r#"mkdir gone && cd gone && rmdir ../gone && "$1" "$2" --listen 127.0.0.1:0 --data "$3""#;
            let output = Command::new("sh")
                .args([
                    "-c",
                    script,
                    "sh",
                    env!("CARGO_BIN_EXE_palisade"),
                    what,
                    data,
                ])
                .current_dir(dir.path(""))
                .output()
                .unwrap();
            text(&output.stderr)
        };
        let said = start("/proc/none");
        assert!(said.contains("cannot make /proc/none: "), "{what}: {said}");
        let said = start("./data");
        let gone = "cannot make ./data: No such file or directory (os error 2); the working directory was removed";
        assert!(said.contains(gone), "{what}: {said}");
        let (link, target) = (dir.path("link"), dir.path("not-mounted"));
        let _ = std::os::unix::fs::symlink(&target, &link);
        let said = start(link.to_str().unwrap());
        let to = format!("it is a link to {}, which is not there", target.display());
        assert!(said.contains(&to), "{what}: {said}");
        assert!(!target.exists());
    }
}

#[test]
fn a_directory_with_somebody_elses_files_is_refused_and_left_as_it_was() {
    for what in ["serve", "store"] {
        let place = TestDirectory::new();
        let data = place.path("data");
        fs::create_dir_all(data.join("lost+found")).unwrap();
        fs::write(data.join("thesis.tex"), "precious").unwrap();
        let said = place.try_start(what, &[]).err().unwrap();
        let named = data.join("palisade");
        for part in ["contains thesis.tex", "--data", named.to_str().unwrap()] {
            assert!(said.contains(part), "{what}: {part} is missing in: {said}");
        }
        let mut names: Vec<_> = fs::read_dir(&data)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["lost+found", "thesis.tex"], "{what}");
        fs::remove_file(data.join("thesis.tex")).unwrap();
        // A file system keeps no file of that name.
        fs::remove_dir(data.join("lost+found")).unwrap();
        fs::write(data.join("lost+found"), "").unwrap();
        let said = place.try_start(what, &[]).err().unwrap();
        assert!(said.contains("contains lost+found"), "{what}: {said}");
        fs::remove_file(data.join("lost+found")).unwrap();
        fs::create_dir(data.join("lost+found")).unwrap();
        drop(place.try_start(what, &[]).unwrap());
        // Once the directory is the server's, foreign files in it do not prevent a start.
        fs::write(data.join("notes.txt"), "").unwrap();
        drop(place.try_start(what, &[]).unwrap());
    }
}

/// The control is the same command on a directory of our own, which it changes.
#[test]
fn no_other_command_leaves_a_file_in_somebody_elses_directory() {
    let place = TestDirectory::new();
    drop(place.serve());
    let foreign = place.path("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("thesis.tex"), "precious").unwrap();
    let names = |dir: &Path| -> Vec<_> {
        let entries = fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    };
    for command in [
        &["backup", "foreign", "--data", "data"][..],
        &["restore", "--in-place", "foreign"],
        &["cluster", "recover", "--data", "foreign", "--yes"],
    ] {
        let refused = place.palisade(command);
        assert!(!refused.status.success(), "{command:?}: {refused:?}");
        assert_eq!(names(&foreign), ["thesis.tex"], "{command:?}");
    }
    let before = names(&place.path("data"));
    let restored = place.palisade(&["restore", "--in-place", "data"]);
    assert!(restored.status.success(), "{restored:?}");
    assert_ne!(names(&place.path("data")), before);
    let saved = place.palisade(&["backup", "saved", "--data", "data"]);
    assert!(saved.status.success(), "{saved:?}");
}

#[test]
fn a_new_authority_is_told_with_its_whole_path_and_existing_begins_none() {
    let place = TestDirectory::new();
    let data = place.path("data");
    let path = data.to_str().unwrap();
    let existing = || {
        Command::new(env!("CARGO_BIN_EXE_palisade"))
            .args(["serve", "--existing", "--listen", "127.0.0.1:0", "--data"])
            .arg(&data)
            .output()
            .unwrap()
    };
    let refused = existing();
    assert!(!refused.status.success());
    let said = String::from_utf8(refused.stderr).unwrap();
    for part in ["there is no authority in", path, "--data"] {
        assert!(said.contains(part), "{part} is missing in: {said}");
    }
    assert!(!data.exists());
    let first = place.serve();
    let said = fs::read_to_string(&first.log).unwrap();
    assert!(
        said.contains(&format!("began a NEW authority in {path}")),
        "{said}"
    );
    drop(first);
    let second = place.serve();
    let said = fs::read_to_string(&second.log).unwrap();
    assert!(!said.contains("NEW"), "{said}");
    drop(second);
}

/// A server checks all its settings before it changes anything. The control is each server without the mistake: it makes the
/// directory.
#[test]
fn a_mistake_in_the_settings_leaves_no_directory_behind() {
    let place = TestDirectory::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let nodes = format!("{taken},127.0.0.1:1,127.0.0.1:2");
    fs::write(place.path("bad.toml"), "[auth]\nprincipal = 1\n").unwrap();
    fs::write(place.path("bad.pem"), "nonsense").unwrap();
    let serve = &["serve"][..];
    let store = &["store"][..];
    let gateway = &[
        "gateway",
        "--upstream",
        "http://127.0.0.1:1",
        "--admin",
        "127.0.0.1:0",
    ][..];
    let tfstate = &["tfstate", "--authority", "http://127.0.0.1:1"][..];
    let member = &["serve", "--cluster", &nodes, "--peer-listen", &taken][..];
    let missing = &["--tls-cert", "missing.pem", "--tls-key", "missing.key"][..];
    let bad = &["--tls-cert", "bad.pem", "--tls-key", "bad.pem"][..];
    for (server, mistake, said) in [
        (serve, missing, "missing.pem"),
        (serve, bad, "bad.pem"),
        (serve, &["--access", "missing.toml"][..], "missing.toml"),
        (serve, &["--access", "bad.toml"], "bad.toml"),
        (
            serve,
            &["--audit", "missing/audit.log"],
            "missing/audit.log",
        ),
        (store, missing, "missing.pem"),
        (store, bad, "bad.pem"),
        (store, &["--keys", "missing.json"], "missing.json"),
        (gateway, missing, "missing.pem"),
        (gateway, &["--drain", "25h"], "a time-out"),
        (tfstate, missing, "missing.pem"),
        (
            &["tfstate", "--authority", "https://127.0.0.1:1"],
            &["--ca-file", "missing.pem"],
            "missing.pem",
        ),
        (member, &[], "cannot listen for other nodes"),
        (
            member,
            &[
                "--tls-cert",
                "missing.pem",
                "--tls-key",
                "missing.key",
                "--peer-ca",
                "bad.pem",
            ],
            "missing.pem",
        ),
    ] {
        let arguments = [
            server,
            &["--listen", "127.0.0.1:0", "--data", "new"],
            mistake,
        ]
        .concat();
        let refused = place.palisade(&arguments);
        assert!(!refused.status.success(), "{arguments:?}");
        let text = text(&refused.stderr);
        assert!(text.contains(said), "{arguments:?}: {text}");
        assert!(!place.path("new").exists(), "{arguments:?}");
    }
    // Keys that are left of another authority.
    let data = place.path("data");
    let first = place.serve();
    until("the keys", || data.join("sequencer.keys").exists());
    drop(first);
    let names = || fs::read_dir(&data).unwrap().count();
    for entry in fs::read_dir(&data).unwrap() {
        let path = entry.unwrap().path();
        if !path.ends_with("sequencer.keys") {
            fs::remove_file(path).unwrap();
        }
    }
    let refused = place.try_start("serve", &[]).err().unwrap();
    assert!(
        refused.contains("sequencer.keys: these are the keys"),
        "{refused}"
    );
    assert_eq!(names(), 1);
    fs::remove_file(data.join("sequencer.keys")).unwrap();
    drop(place.serve());
    assert!(names() > 1);
}

#[test]
fn a_backup_of_a_folder_without_a_log_is_the_callers_mistake() {
    let dir = tempfile::tempdir().unwrap();
    let [to, nowhere] = ["to", "nowhere"].map(|name| dir.path().join(name));
    let mut backup = palisade();
    backup.args(["backup", "--json"]).arg(&to).arg("--data");
    let output = backup.arg(&nowhere).output().unwrap();
    assert_eq!(status(&output), 125);
    let said: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(said["error"]["code"], "not_found", "{said}");
}
