//! `--report-to`: a store and a gateway tell a lock server of the late writes that they refused.

use std::net::TcpListener;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::{Server, json as parse, now, status, text, until};
use crate::gateway::support;
use crate::gateway::upstream::Upstream;
use crate::traces;

/// The refused writes of all grants: lock, token, resource, operation and the highest token.
fn refused(server: &Server) -> Vec<Value> {
    let output = server.output(&["history", "--refused", "--json"]);
    assert_eq!(status(&output), 0, "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    let grants = lines.lines().map(|line| parse(line.as_bytes()));
    grants
        .flat_map(|grant| {
            let late = grant["rejections"].as_array().unwrap().clone();
            late.into_iter().map(move |one| {
                json!([
                    grant["resource_id"],
                    grant["fencing_token"],
                    one["resource"],
                    one["operation"],
                    one["highest"]
                ])
            })
        })
        .collect()
}

/// Two grants of a lock that is named like the resource, of which the first one is over.
fn two_grants(server: &Server) {
    for client in ["a", "b"] {
        let words = [
            "acquire",
            "account:7",
            "--client-id",
            client,
            "--ttl",
            "60s",
        ];
        assert_eq!(status(&server.output(&words)), 0);
        if client == "a" {
            let words = ["break", "account:7", "--token", "1", "--reason", "it hangs"];
            assert_eq!(status(&server.output(&words)), 0);
        }
    }
    until("both grants", || {
        text(&server.output(&["history", "account:7", "--json"]).stdout)
            .lines()
            .count()
            == 2
    });
}

/// The controls are the same two without `--report-to`, which come first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_and_a_gateway_tell_of_late_writes() {
    let server = Server::start();
    two_grants(&server);
    let (_upstream, upstream) = Upstream::start().await;
    // They live until their reports have arrived.
    let mut fences = Vec::new();
    for reports in [false, true] {
        for at in ["store", "gateway"] {
            let data = server.file(&format!("{at}-{reports}"));
            let mut command = match at {
                "store" => traces::command("store", &data),
                _ => support::command(&upstream, &data),
            };
            if at == "gateway" {
                command.args(["--route", "/accounts/{id:uint}=account:{id}"]);
            }
            if reports {
                command.args(["--report-to", &server.url]);
            }
            let log = server.file(&format!("{at}-{reports}.log"));
            let (fence, caller) = traces::start(command, &log);
            fences.push(fence);
            assert_eq!(traces::write(&caller, at, 2, None).await, 200, "{at}");
            for _ in 0..3 {
                assert_eq!(traces::write(&caller, at, 1, None).await, 412, "{at}");
            }
        }
    }
    until("both reports", || refused(&server).len() == 2);
    let mut refused = refused(&server);
    refused.sort_by_key(|one| one[3].to_string());
    assert_eq!(
        refused,
        [
            json!(["account:7", 1, "account:7", "PUT /accounts/7", 2]),
            json!(["account:7", 1, "account:7", "claim", 2]),
        ]
    );
}

/// The control is a store that reports to nobody. One that waited would take the two seconds of an attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_that_never_answers_delays_no_answer() {
    const WRITES: u64 = 30;
    let dir = tempfile::tempdir().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let mut took = Vec::new();
    for reports in [false, true] {
        let mut command = traces::command("store", &dir.path().join(format!("{reports}")));
        if reports {
            command.args(["--report-to", &url]);
        }
        let (_store, caller) = traces::start(command, &dir.path().join(format!("{reports}.log")));
        assert_eq!(traces::write(&caller, "store", WRITES + 1, None).await, 200);
        let began = now();
        for token in 1..=WRITES {
            assert_eq!(traces::write(&caller, "store", token, None).await, 412);
        }
        took.push(now().since(began).to_duration());
        let name = "palisade_store_reports_dropped_total";
        let metrics = async || caller.observe("/metrics").await.text();
        if reports {
            while metrics().await.contains(&format!("\n{name} 0\n")) {
                // real time: an attempt lasts two seconds
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        assert_eq!(metrics().await.contains(name), reports);
    }
    // real time: the margin is that of the control
    assert!(
        took[1] < took[0] * 5 + Duration::from_millis(500),
        "{took:?}"
    );
}

#[test]
fn an_address_that_is_none_is_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    for server in ["store", "gateway"] {
        let mut command = traces::command(server, &dir.path().join(server));
        if server == "gateway" {
            command.args(["--upstream", "http://127.0.0.1:9", "--admin", "127.0.0.1:0"]);
        }
        let output = command.args(["--report-to", "etcd://127.0.0.1"]).output();
        let output = output.unwrap();
        assert_eq!(status(&output), 2, "{}", text(&output.stderr));
        let said = text(&output.stderr) + &text(&output.stdout);
        assert!(
            said.contains("--report-to") && said.contains("etcd"),
            "{said}"
        );
    }
}
