//! `palisade run` and `palisade acquire` with several locks, against a real server.

use std::fs;

use crate::common::{Run, Server, json, status, text, until};
use serde_json::Value;

fn token(server: &Server, lock: &str) -> Value {
    server.show(lock)["holder"]["fencing_token"].clone()
}

#[test]
fn a_job_gets_all_its_locks_with_one_token_and_the_loss_of_one_ends_it() {
    let server = Server::start();
    let seen = server.file("seen");
    let script = format!(
        r#"printf '%s|%s|%s' "$PALISADE_LOCK" "$PALISADE_FENCING_TOKEN" "$PALISADE_LOCKS" > {0}.new; mv {0}.new {0}; exec sleep 1000"#,
        seen.display()
    );
    let job = ["run", "b", "a", "--ttl", "2s", "--", "sh", "-c", &script];
    let run = Run::start(&mut server.palisade(&job));
    until("the job", || seen.exists());
    assert_eq!(fs::read_to_string(&seen).unwrap(), "b|1|b\na");
    assert_eq!([token(&server, "a"), token(&server, "b")], [1, 1]);

    let late = server.output(&["run", "a", "c", "-n", "--", "true"]);
    assert_eq!(status(&late), 124, "{}", text(&late.stderr));
    assert_eq!(server.show("c")["holder"], Value::Null);

    // An operator takes the one that was not named first.
    let taken = ["break", "a", "--token", "1", "--reason", "test"];
    assert_eq!(status(&server.output(&taken)), 0);
    assert_eq!(status(&run.end()), 123);
    until("the other lock", || server.show("b")["holder"].is_null());
}

#[test]
fn several_locks_are_acquired_in_a_shell_and_released_one_by_one() {
    let server = Server::start();
    let held = server.output(&["acquire", "a", "b", "--json"]);
    assert_eq!(status(&held), 0, "{}", text(&held.stderr));
    let held = json(&held.stdout);
    assert_eq!(held["resource_ids"], serde_json::json!(["a", "b"]));
    let secret = held["lock_token"].as_str().unwrap();
    for lock in ["b", "a"] {
        let mut release = server.palisade(&["release", lock]);
        let output = release.env("PALISADE_LOCK_TOKEN", secret).output().unwrap();
        assert_eq!(status(&output), 0, "{}", text(&output.stderr));
        assert_eq!(server.show(lock)["holder"], Value::Null);
    }
    for (wrong, says) in [
        (vec!["acquire", "a", "b", "--shared"], "--shared"),
        (vec!["acquire", "a", "b", "--permits", "1/2"], "--permits"),
        (vec!["acquire", "a", "b", "a"], "a"),
    ] {
        let output = server.output(&wrong);
        assert_ne!(status(&output), 0, "{wrong:?}");
        assert!(
            text(&output.stderr).contains(says),
            "{}",
            text(&output.stderr)
        );
        assert_eq!(server.show("a")["holder"], Value::Null);
    }
}
