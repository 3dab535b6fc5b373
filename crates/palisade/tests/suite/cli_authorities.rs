//! A URL selects the authority: the same commands against real etcd, ZooKeeper and PostgreSQL.

use std::process::{Command, Output};

use crate::common::{json, palisade, status, text};
use serde_json::Value;

/// Runs commands against one authority.
struct Shell {
    url: String,
}

impl Shell {
    fn at(url: String) -> Shell {
        Shell { url }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = palisade();
        command.args(arguments).env("PALISADE_AUTHORITY", &self.url);
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// The JSON output of a command that must succeed.
    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.output(&[arguments, &["--json"]].concat());
        assert_eq!(
            status(&output),
            0,
            "{arguments:?}: {}",
            text(&output.stderr)
        );
        json(&output.stdout)
    }

    /// Everything that every authority supports, as people type it.
    fn run_common_commands(&self) {
        self.a_job_runs_under_a_lock();
        let grant = self.json(&["acquire", "orders", "--client-id", "me", "--ttl", "10s"]);
        let token = grant["fencing_token"].as_u64().unwrap();
        let shown = self.json(&["show", "orders"]);
        assert_eq!(shown["holder"]["fencing_token"], token);
        assert_eq!(shown["holder"]["client_id"], "me");
        assert_eq!(self.json(&["ls"])["resource_id"], "orders");
        let denied = self.output(&["acquire", "orders", "-n", "--ttl", "10s"]);
        assert_eq!(status(&denied), 124, "{}", text(&denied.stderr));
        assert!(text(&denied.stderr).contains("held by me"));
        let key = grant["lock_token"].as_str().unwrap();
        let late = self.output_with(key, &["release", "orders", "--token", "1"]);
        assert_ne!(status(&late), 0, "another grant's release");
        let released = self.output_with(key, &["release", "orders", "--token", &token.to_string()]);
        assert_eq!(status(&released), 0, "{}", text(&released.stderr));
        assert_eq!(self.json(&["show", "orders"])["holder"], Value::Null);
        self.an_operator_breaks_a_lock();
        let unheard = self.output(&["watch"]);
        assert_eq!(status(&unheard), 125);
        assert!(text(&unheard.stderr).contains("this authority cannot watch locks"));
    }

    fn output_with(&self, key: &str, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        command.env("PALISADE_LOCK_TOKEN", key).output().unwrap()
    }

    fn a_job_runs_under_a_lock(&self) {
        let script = "echo $PALISADE_FENCING_TOKEN; exit 7";
        let mut tokens = Vec::new();
        for _ in 0..2 {
            let output = self.output(&["run", "nightly", "--", "sh", "-c", script]);
            assert_eq!(status(&output), 7, "{}", text(&output.stderr));
            tokens.push(text(&output.stdout).trim().parse::<u64>().unwrap());
        }
        assert!(tokens[0] < tokens[1], "{tokens:?}");
        assert_eq!(self.json(&["show", "nightly"])["holder"], Value::Null);
    }

    fn an_operator_breaks_a_lock(&self) {
        let grant = self.json(&["acquire", "stuck", "--ttl", "20s"]);
        let token = grant["fencing_token"].to_string();
        self.json(&["break", "stuck", "--token", &token, "--reason", "test"]);
        assert_eq!(self.json(&["show", "stuck"])["holder"], Value::Null);
    }

    fn renewal(&self) -> Output {
        let grant = self.json(&["acquire", "renewed", "--ttl", "10s"]);
        let key = grant["lock_token"].as_str().unwrap();
        self.output_with(key, &["renew", "renewed"])
    }
}

#[test]
fn etcd() {
    let server = palisade_testbed::Etcd::start(&[]);
    let shell = Shell::at(format!("etcd://{}", server.address()));
    shell.run_common_commands();
    assert_eq!(status(&shell.renewal()), 0);
}

#[test]
fn zookeeper() {
    let server = palisade_testbed::ZooKeeper::start(&[]);
    let shell = Shell::at(format!("zookeeper://{}", server.address()));
    shell.run_common_commands();
    // It reports unsupported features.
    let renewal = shell.renewal();
    assert_eq!(status(&renewal), 125);
    assert!(text(&renewal.stderr).contains("lease of another process"));
}

#[test]
fn postgres_and_its_password_is_never_printed() {
    let server = palisade_testbed::Postgres::start(&[]);
    let address = server.address();
    let shell = Shell::at(format!("postgres://postgres:s3cret@{address}/postgres"));
    shell.run_common_commands();
    assert_eq!(status(&shell.renewal()), 0);
    let exported = shell.output(&["acquire", "exported", "--export"]);
    let lost = Shell::at("postgres://postgres:s3cret@127.0.0.1:1/postgres".to_owned());
    for output in [
        exported,
        shell.output(&["acquire", "plain"]),
        shell.output(&["watch"]),
        shell.output(&["show", "--help"]),
        lost.output(&["show", "orders"]),
        lost.output(&["show", "orders", "--json"]),
        Shell::at("postgres://u:s3cret@host:x/db".to_owned()).output(&["ls"]),
        Shell::at("consul://u:s3cret@host".to_owned()).output(&["ls"]),
    ] {
        let printed = [text(&output.stdout), text(&output.stderr)].concat();
        assert!(!printed.contains("s3cret"), "{printed}");
    }
}

#[test]
fn an_unknown_scheme_is_refused_with_the_known_ones() {
    let output = Shell::at("consul://host".to_owned()).output(&["ls"]);
    assert_eq!(status(&output), 2);
    let message = text(&output.stderr);
    assert!(
        message.contains("etcd://") && message.contains("postgres://"),
        "{message}"
    );
}
