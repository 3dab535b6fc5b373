//! Settings from a file, the environment and flags.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::common::{Run, Server, json, palisade, send, status, text};

fn written(folder: &Path, file: &str) -> String {
    let path = folder.join("palisade.toml");
    fs::write(&path, file).unwrap();
    path.to_str().unwrap().to_owned()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_server_starts_from_a_file_alone_and_from_the_environment_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(
        folder.path(),
        "[serve]\nlisten = \"127.0.0.1:0\"\ndata = \"here\"\nmin-ttl = \"7s\"\n",
    );
    let started = |command: &mut Command| {
        let child = command.args(["serve", "--json"]).current_dir(folder.path());
        let mut child = child
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        (Run::keep(child), json(line.as_bytes()))
    };
    let (server, said) = started(palisade().env("PALISADE_CONFIG", file));
    let url = said["url"].as_str().unwrap();
    let refused = palisade()
        .args(["acquire", "a", "--ttl", "6999ms", "--authority", url])
        .output()
        .unwrap();
    assert!(
        text(&refused.stderr).contains("between 7 s and"),
        "{}",
        text(&refused.stderr)
    );
    assert!(folder.path().join("here").is_dir());
    drop(server);
    let elsewhere = [
        ("PALISADE_LISTEN", "127.0.0.1:0"),
        ("PALISADE_DATA", "there"),
    ];
    let (_server, _) = started(palisade().envs(elsewhere));
    assert!(folder.path().join("there").is_dir());
}

#[test]
fn show_says_what_is_in_force_and_where_it_comes_from() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(
        folder.path(),
        "[serve]\ndata = \"/srv/locks\"\n\nallow-host = [\"a\", \"b\"]\n[gateway]\nupstream = \"http://me:secret@h:1\"\n",
    );
    let show = |more: &[&str]| {
        let output = palisade()
            .args(["config", "show", "--config", &file])
            .args(more)
            .env("PALISADE_MIN_TTL", "1s")
            .output()
            .unwrap();
        assert_eq!(status(&output), 0, "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let shown = show(&["--origin", "--", "--listen", "127.0.0.1:1"]);
    let line = |start: &str| {
        let found = shown.lines().find(|line| line.starts_with(start));
        found
            .unwrap_or_else(|| panic!("{start}: {shown}"))
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(line("listen"), "listen = \"127.0.0.1:1\" # flag");
    assert_eq!(line("min-ttl"), "min-ttl = \"1s\" # PALISADE_MIN_TTL");
    assert_eq!(
        line("data"),
        format!("data = \"/srv/locks\" # {file}, line 2")
    );
    assert_eq!(
        line("allow-host"),
        format!("allow-host = [\"a\", \"b\"] # {file}, line 4")
    );
    assert_eq!(line("insecure"), "insecure = false # default");
    assert_eq!(line("# access"), "# access # default");
    let gateway = show(&["gateway"]);
    assert!(
        !gateway.contains("secret") && gateway.contains("h:1"),
        "{gateway}"
    );
    let values = show(&["--json"]);
    let values: Vec<_> = values.lines().map(|line| json(line.as_bytes())).collect();
    let data = values
        .iter()
        .find(|value| value["setting"] == "data")
        .unwrap();
    assert_eq!(data["value"], "/srv/locks");
    // The output is a settings file with the same settings.
    let again = written(folder.path(), &show(&[]));
    let checked = palisade()
        .args(["config", "check", "--config", &again])
        .output()
        .unwrap();
    assert_eq!(status(&checked), 0, "{}", text(&checked.stderr));
}

#[test]
fn a_file_with_a_mistake_is_refused_and_nothing_is_made() {
    for (file, why) in [
        (
            "[serve]\nlistn = \"x\"",
            "line 2: [serve] has no setting \"listn\"; is \"listen\" meant?",
        ),
        (
            "[serve]\nlisten = \"localhost\"",
            "line 2: invalid value 'localhost' for '--listen <ADDRESS>'",
        ),
        (
            "[serve]\nmin-ttl = \"2s\"\nmax-ttl = \"1s\"",
            "--min-ttl 2000 ms is above --max-ttl 1000 ms",
        ),
        (
            "[serve]\nlisten = \"0.0.0.0:0\"",
            "other machines could reach this port",
        ),
        ("[serve]\naccess = \"missing.toml\"", "missing.toml"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = written(folder.path(), file);
        for words in [&["config", "check"][..], &["serve"]] {
            let refused = palisade()
                .args(words)
                .args(["--config", &path])
                .current_dir(folder.path())
                .output()
                .unwrap();
            assert_eq!(status(&refused), 2, "{words:?} {file}");
            let said = text(&refused.stderr);
            assert!(said.contains(why), "{words:?} {file}: {said}");
        }
        assert_eq!(names(folder.path()), ["palisade.toml"], "{file}");
    }
    let missing = palisade()
        .args(["serve", "--config", "/nowhere.toml", "--json"])
        .output()
        .unwrap();
    assert_eq!(status(&missing), 2);
    assert_eq!(json(&missing.stderr)["error"]["code"], "invalid");
}

#[test]
fn sighup_says_which_settings_a_restart_would_take() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(
        folder.path(),
        "[serve]\nlisten = \"127.0.0.1:0\"\ndata = \"d\"\n",
    );
    let mut child = palisade()
        .args(["serve", "--config", &file])
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut start = BufReader::new(child.stdout.take().unwrap()).lines();
    let run = Run::keep(child);
    start
        .find(|line| line.as_ref().unwrap().contains("listening"))
        .unwrap()
        .unwrap();
    let mut after = |file: &str, said: &str| {
        written(folder.path(), file);
        send(run.pid(), Signal::HUP);
        let line = log.find(|line| {
            let line = line.as_ref().unwrap();
            line.contains("SIGHUP") || line.contains("settings stay")
        });
        let line = line.unwrap().unwrap();
        assert!(line.contains(said), "{line}");
    };
    let before = "[serve]\nlisten = \"127.0.0.1:0\"\ndata = \"d\"\n";
    after(before, "no setting has changed");
    after(&format!("{before}min-ttl = \"9s\"\n"), "changed=min-ttl");
    after("[serve]\nlisten = 1", "line 2");
    // It still serves.
    send(run.pid(), Signal::TERM);
    assert_eq!(status(&run.end()), 0);
}

#[test]
fn the_example_file_is_good() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/palisade.toml");
    let folder = tempfile::tempdir().unwrap();
    let text_of = fs::read_to_string(&file).unwrap();
    // Every setting of it, also those that are examples behind a mark.
    let all = text_of.replace("\n#:", "\n");
    assert_ne!(all, text_of);
    for file in [&text_of, &all] {
        let path = written(folder.path(), file);
        let checked = palisade()
            .args(["config", "show", "--config", &path])
            .output()
            .unwrap();
        assert_eq!(status(&checked), 0, "{}", text(&checked.stderr));
    }
    let path = written(folder.path(), &text_of);
    let checked = palisade()
        .args(["config", "check", "--config", &path])
        .output()
        .unwrap();
    assert_eq!(status(&checked), 0, "{}", text(&checked.stderr));
}

/// A set of two counts twice, so it is over the share before it waits. The control has the default.
#[test]
fn the_share_of_waits_of_an_address_is_a_setting() {
    for (flags, fits) in [(&["--waits-per-address", "1"][..], false), (&[], true)] {
        let server = Server::with(flags);
        let acquire = server.output(&["acquire", "a", "b", "--wait", "1s"]);
        let said = text(&acquire.stderr);
        assert_eq!(status(&acquire) == 0, fits, "{said}");
        assert_eq!(said.contains("--waits-per-address"), !fits, "{said}");
    }
}
