//! The meaning of one node's metrics.

use serde_json::json;

use super::finding::Finding;
use super::judge::{CERTIFICATE_DAYS, expiry};
use super::node::Metrics;

/// As in `deploy/alerts.yaml`.
const CA_DAYS: u64 = 30;
const LIST_DAYS: u64 = 1;

/// The history stops below this.
const LITTLE_ROOM: u64 = 256 << 20;

/// Findings from the metrics.
pub(super) fn all(at: &str, metrics: &Metrics, now_ms: u64) -> Vec<Finding> {
    let is_set = |name: &str| metrics.count(name).is_some_and(|value| value > 0);
    let mut findings = Vec::new();
    findings.extend(metrics.count("palisade_disk_free_bytes").map(|free| {
        let full = is_set("palisade_log_full") || is_set("palisade_cluster_disk_full");
        disk(at, free, full)
    }));
    let limits = [
        (
            "descriptors",
            "process_open_fds",
            "process_max_fds",
            "raise LimitNOFILE= of the unit, and restart the server",
        ),
        (
            "connections",
            "palisade_connections",
            "palisade_connections_limit",
            "find who opens them (ss -tn), or raise --connections; docs: operate/sizing.md",
        ),
    ];
    for (about, used, limit, next) in limits {
        let figures = metrics.count(used).zip(metrics.count(limit));
        findings.extend(figures.map(|(used, limit)| usage(about, at, used, limit, next)));
    }
    for (name, subject, notice, next) in [
        (
            "palisade_client_ca_expires_timestamp_seconds",
            "a CA of its clients",
            CA_DAYS,
            "put the new CA into the file of --tls-client-ca; docs: operate/runbook/certificates.md",
        ),
        (
            "palisade_client_crl_expires_timestamp_seconds",
            "its list of revoked certificates",
            LIST_DAYS,
            "put a new list into the file of --tls-client-crl",
        ),
        (
            "palisade_auth_token_expires_timestamp_seconds",
            "the first token in its access file",
            CERTIFICATE_DAYS,
            "palisade auth token new PRINCIPAL, and give it to its owner; docs: operate/runbook/certificates.md",
        ),
    ] {
        let second = metrics.count(name).filter(|second| *second > 0);
        findings.extend(
            second.map(|second| expiry("certificate", at, subject, second, notice, now_ms, next)),
        );
    }
    if metrics.count("palisade_next_token") == Some(0) {
        let what = "the range of fencing tokens is used up: nothing is granted any more";
        findings.push(
            Finding::problem("tokens", at, what)
                .next("begin a new authority, and re-arm the fences: palisade fence rearm"),
        );
    }
    if is_set("palisade_history_unwritable") {
        let what = "its history cannot be written; locks are granted all the same";
        findings.push(
            Finding::warning("history", at, what)
                .next("free some of the disk, or read the server's log"),
        );
    }
    if is_set("palisade_history_gaps_total") {
        let what = "its history lacks changes";
        findings.push(
            Finding::note("history", at, what)
                .next("palisade history says which; docs: operate/history.md"),
        );
    }
    if is_set("palisade_audit_lost_total") {
        let what = "lines of its audit file were lost";
        findings.push(
            Finding::warning("audit", at, what)
                .next("free the disk of --audit, and read the server's log"),
        );
    }
    findings
}

/// The room on the disk of a data directory.
pub(super) fn disk(at: &str, free: u64, full: bool) -> Finding {
    let mib = free >> 20;
    let finding = if full {
        Finding::problem(
            "disk",
            at,
            format!("its log has no room, {mib} MiB are free: nothing is granted"),
        )
        .next("free some of the disk; docs: operate/runbook/disk-full.md")
    } else if free < LITTLE_ROOM {
        Finding::warning(
            "disk",
            at,
            format!("only {mib} MiB are free; the history has stopped, and the log is next"),
        )
        .next("free some of the disk; docs: operate/runbook/disk-full.md")
    } else {
        Finding::ok("disk", at, format!("{mib} MiB are free"))
    };
    finding.data(json!({"free_bytes": free}))
}

/// A number that has a limit.
fn usage(about: &'static str, at: &str, used: u64, limit: u64, next: &str) -> Finding {
    let what = match limit {
        u64::MAX => format!("{used} are open, without a limit"),
        _ => format!("{used} of {limit} are open"),
    };
    // The metrics themselves take one.
    let many = u128::from(used) * 10 >= u128::from(limit) * 8;
    let finding = match (many, used >= limit) {
        (_, true) => Finding::problem(about, at, what).next(next),
        (true, _) => Finding::warning(about, at, what).next(next),
        (false, _) => Finding::ok(about, at, what),
    };
    finding.data(json!({"open": used, "limit": limit}))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::super::judge::tests::{HERE, NOW, state};
    use super::*;

    #[test]
    fn figures_near_their_limit_are_found() {
        for (metrics, about, expected) in [
            ("palisade_disk_free_bytes 1000", "disk", Severity::Warning),
            (
                "palisade_disk_free_bytes 1000\npalisade_log_full 1",
                "disk",
                Severity::Problem,
            ),
            (
                "process_open_fds 820\nprocess_max_fds 1024",
                "descriptors",
                Severity::Warning,
            ),
            (
                "process_open_fds 1024\nprocess_max_fds 1024",
                "descriptors",
                Severity::Problem,
            ),
            (
                "process_open_fds 810\nprocess_max_fds 1024",
                "descriptors",
                Severity::Ok,
            ),
            (
                "palisade_connections 9000\npalisade_connections_limit 10000",
                "connections",
                Severity::Warning,
            ),
            ("palisade_next_token 0", "tokens", Severity::Problem),
            (
                "palisade_history_unwritable 1",
                "history",
                Severity::Warning,
            ),
            ("palisade_audit_lost_total 1", "audit", Severity::Warning),
            (
                "palisade_client_ca_expires_timestamp_seconds 1790000100",
                "certificate",
                Severity::Warning,
            ),
        ] {
            let findings = all(HERE, &Metrics::of(metrics), NOW);
            assert_eq!(state(&findings, about), Some(expected), "{metrics}");
        }
    }
}
