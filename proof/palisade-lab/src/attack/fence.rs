//! Rows 19 and 20: tokens that jump, and rejections that nobody sees.

use std::net::SocketAddr;

use serde_json::json;

use super::harness::Harness;
use super::http::{self, JSON, Reply};
use super::outcome::{Attack, Outcome};
use super::upstream::Upstream;

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "jump-poisons-fence",
        row: 19,
        does: "one claim jumps as far as the store admits; how many claims exhaust the range",
        bounds: "24 claims",
        run: jump,
    },
    Attack {
        name: "uncounted-rejections",
        row: 20,
        does: "six writes without a token at the gateway and at the store",
        bounds: "12 requests",
        run: uncounted,
    },
];

fn claim(to: SocketAddr, resource: &str, token: u64) -> Result<Reply, String> {
    let body = json!({"resource_id": resource, "fencing_token": token}).to_string();
    http::ask(to, "POST", "/v1/storage/claim", &JSON, &body)
}

fn jump(harness: &Harness) -> Result<Outcome, String> {
    let store = harness.store("store")?;
    for bits in (30..53).rev() {
        let resource = format!("r{bits}");
        let first = claim(store.address, &resource, 1)?;
        if first.status != 200 {
            return Err(format!("the first claim got {}", first.status));
        }
        if claim(store.address, &resource, 1 + (1 << bits))?.status != 200 {
            continue;
        }
        let shut_out = claim(store.address, &resource, 2)?.status == 412;
        let requests = 1_u64 << (53 - bits);
        return Ok(Outcome::measured(
            requests >= LEAST,
            format!(
                "a jump of 2^{bits} is admitted, and shuts the next holder out: {shut_out}; {requests} exhaust the range"
            ),
            format!("at least {LEAST} to exhaust it"),
        ));
    }
    Ok(Outcome::measured(
        true,
        "no jump of 2^30 or more is admitted",
        "none",
    ))
}

/// A restore raises the token counter by up to 2^46 (`palisade_core::limits::restore_leap`); a fence must not
/// admit much more.
const LEAST: u64 = 128;

fn uncounted(harness: &Harness) -> Result<Outcome, String> {
    let store = harness.store("store")?;
    claim(store.address, "r", 3)?;
    let body = json!({"resource_id": "r",
        "write_payload": {"mutation_type": "PUT", "file_path": "/f", "bytes": "QUFB"}});
    let write = || {
        http::ask(
            store.address,
            "POST",
            "/v1/storage/write",
            &JSON,
            &body.to_string(),
        )
    };
    let (at_store, logged_store) = count(store.address, || store.log(), write)?;
    let upstream = match Upstream::start(harness)? {
        Some(upstream) => upstream,
        None => {
            return Ok(Outcome::not_run(
                "python3 is not installed: an upstream is needed",
            ));
        }
    };
    let gateway = upstream.gateway(harness, "gateway", &[])?;
    let token = [("x-fencing-token", "3")];
    http::ask(gateway.address, "PUT", "/accounts/7", &token, "x")?;
    let admin = gateway.said["admin"].as_str().unwrap_or_default();
    let admin = admin.trim_start_matches("http://").parse();
    let admin: SocketAddr = admin.map_err(|_| "the gateway did not print its admin port")?;
    let write = || http::ask(gateway.address, "PUT", "/accounts/7", &[], "x");
    let (at_gateway, logged_gateway) = count(admin, || gateway.log(), write)?;
    Ok(Outcome::measured(
        at_store == 6 && at_gateway == 6 && logged_store.min(logged_gateway) >= 6,
        format!(
            "of six: the store counted {at_store} and logged {logged_store}, the gateway counted {at_gateway} and \
             logged {logged_gateway}"
        ),
        "six each",
    ))
}

/// Sends six writes without a token: by how much the rejection counters grew, and how many lines the log got.
fn count(
    metrics: SocketAddr,
    log: impl Fn() -> String,
    write: impl Fn() -> Result<Reply, String>,
) -> Result<(u64, u64), String> {
    let rejected = || -> Result<u64, String> {
        let text = http::get(metrics, "/metrics")?.body;
        let lines = text
            .lines()
            .filter(|line| !line.starts_with('#') && line.contains("rejected"));
        let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        Ok(values.sum::<f64>() as u64)
    };
    let (before, lines) = (rejected()?, log().lines().count());
    for _ in 0..6 {
        let reply = write()?;
        if reply.status != 428 {
            return Err(format!("a write without a token got {}", reply.status));
        }
    }
    let logged = (log().lines().count() - lines) as u64;
    Ok((rejected()? - before, logged))
}
