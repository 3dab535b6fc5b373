//! Processes that speak TLS with each other: they form a cluster and lose a leader; strangers get the reason for
//! their refusal.

use std::fs;
use std::process::Output;
use std::time::{Duration, SystemTime};

use palisade_tls::issue::{CertificateAuthority, Validity};
use serde_json::Value;

use crate::common::cluster::{Cluster, ELECTION};
use crate::common::{palisade, text, until_in};
use crate::tls::Ca;

/// Three nodes with certificates and a key.
struct Secure {
    cluster: Cluster,
    ca: Ca,
    key: String,
}

impl Secure {
    fn start() -> Secure {
        let cluster = Cluster::planned(3);
        let ca = Ca::of(&cluster, "ca");
        let key = cluster.dir.path().join("cluster.key");
        fs::write(&key, "0123456789abcdef0123456789abcdef").unwrap();
        let mut secure = Secure {
            key: key.to_str().unwrap().to_owned(),
            cluster,
            ca,
        };
        (0..3).for_each(|at| secure.start_node(at));
        secure.until_led();
        secure
    }

    fn start_node(&mut self, at: usize) {
        let list = self.cluster.list.clone();
        self.start_with(at, &list, &self.ca.of_server());
    }

    fn start_with(&mut self, at: usize, list: &str, certificates: &[String]) {
        let mut flags = vec!["--cluster", list, "--cluster-key-file", &self.key];
        flags.extend(certificates.iter().map(|part| &**part));
        self.cluster.nodes[at].start(&flags);
    }

    fn palisade(&self, arguments: &[&str]) -> Output {
        let urls: Vec<String> = self.cluster.nodes[..3]
            .iter()
            .map(|node| format!("https://{}", node.listen))
            .collect();
        let mut command = palisade();
        command
            .args(arguments)
            .args(["--authority", &urls.join(","), "--json"]);
        self.ca.of_client(&mut command).output().unwrap()
    }

    fn leader(&self) -> Option<usize> {
        let status = self.palisade(&["cluster", "status"]);
        let view: Value = serde_json::from_slice(&status.stdout).ok()?;
        let url = view["leader_url"].as_str()?.to_owned();
        let nodes = &self.cluster.nodes;
        nodes
            .iter()
            .position(|node| url == format!("https://{}", node.listen))
    }

    fn until_led(&self) -> usize {
        until_in(ELECTION, "a leader", || self.leader().is_some());
        self.leader().unwrap()
    }

    /// Acquires a lock, and gives its token.
    fn token(&self, lock: &str) -> u64 {
        let acquire = ["acquire", lock, "--ttl", "10m", "--wait", "30s"];
        let granted = self.palisade(&acquire);
        assert!(granted.status.success(), "{}", text(&granted.stderr));
        let granted: Value = serde_json::from_slice(&granted.stdout).unwrap();
        granted["fencing_token"].as_u64().unwrap()
    }

    fn logs(&self) -> String {
        let logs = self.cluster.nodes[..3].iter().map(|node| node.log());
        logs.collect()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "certificates are valid by the wall clock"
)]
fn hours_ago(hours: u64) -> SystemTime {
    SystemTime::now() - Duration::from_secs(hours * 3_600)
}

#[test]
fn nodes_with_certificates_form_a_cluster_that_outlives_its_leader_and_keeps_strangers_out() {
    let mut secure = Secure::start();
    assert_eq!(secure.token("first"), 1);
    let leader = secure.until_led();
    secure.cluster.nodes[leader].kill();
    until_in(ELECTION, "another leader", || {
        secure.leader().is_some_and(|now| now != leader)
    });
    assert_eq!(secure.token("second"), 2);
    secure.start_node(leader);

    let other = Ca::of(&secure.cluster, "other-ca");
    let expired = {
        let mut flags = secure.ca.of_server();
        let issuer =
            CertificateAuthority::load(&fs::read_to_string(secure.ca.file("ca.key")).unwrap());
        let validity = Validity {
            from: hours_ago(9),
            until: hours_ago(3),
        };
        let issued = issuer
            .unwrap()
            .issue(&[&*secure.cluster.host], validity)
            .unwrap();
        for (flag, contents) in [(1, issued.certificate), (3, issued.key)] {
            flags[flag] = secure.ca.file(&format!("expired-{flag}"));
            fs::write(&flags[flag], contents).unwrap();
        }
        flags
    };
    // The stranger's error, and a member's log line.
    for (certificates, told, logged) in [
        (other.of_server(), "CA that is not trusted", "not trusted"),
        (expired, "has expired", "expired 3 hours ago"),
        (
            Vec::new(),
            "speak TLS with each other",
            "speak TLS with each other",
        ),
    ] {
        let stranger = secure.cluster.plan();
        let list = format!(
            "{},{}",
            secure.cluster.list, secure.cluster.nodes[stranger].peer
        );
        secure.start_with(stranger, &list, &certificates);
        until_in(ELECTION, "both sides' messages", || {
            secure.cluster.nodes[stranger].log().contains(told) && secure.logs().contains(logged)
        });
        let view = secure.palisade(&["cluster", "status"]);
        let view: Value = serde_json::from_slice(&view.stdout).unwrap();
        assert_eq!(view["members"].as_array().unwrap().len(), 3, "{view}");
        secure.cluster.nodes[stranger].kill();
    }
    assert_eq!(secure.token("third"), 3);
}

#[test]
fn a_node_whose_certificate_the_others_would_refuse_does_not_start() {
    let mut cluster = Cluster::planned(1);
    let ca = Ca::of(&cluster, "ca");
    ca.cert(&["client-a"]);
    let list = cluster.list.clone();
    let (certificate, key) = (ca.file("client-a.pem"), ca.file("client-a.key"));
    let advice = format!("palisade auth cert {}", cluster.host);
    let own = [
        "--cluster",
        &list,
        "--tls-cert",
        &certificate,
        "--tls-key",
        &key,
    ];
    let authority = ca.file("ca.pem");
    for (more, expected) in [
        (&["--peer-ca", &*authority][..], &*advice),
        (&[], "--peer-ca"),
    ] {
        cluster.nodes[0].start(&[&own[..], more].concat());
        assert_ne!(cluster.nodes[0].end(), Some(0));
        let log = cluster.nodes[0].log();
        assert!(log.contains(expected), "{log}");
        assert!(!cluster.nodes[0].data.join("identity").exists());
    }
}
