//! The meaning of one node's answers.

use palisade_client::without_secrets;
use palisade_proto::Code;
use serde_json::json;

use super::super::output::millis;
use super::figures;
use super::finding::Finding;
use super::node::{AskedNode, NodeAnswers, NotReached, Whoami};
use crate::cluster::Error;

/// A wall clock that differs by more than this makes times in logs and histories misleading.
const SKEW_MS: u64 = 2_000;
/// By then, credentials with a time are refused too early or too late.
const FAR_MS: u64 = 60_000;

const DAY: u64 = 86_400;
/// As in `deploy/alerts.yaml`.
pub(super) const CERTIFICATE_DAYS: u64 = 7;

/// The findings about one node. `alone`: no address answered, so nothing at all is known about the servers.
pub(super) fn node(node: &AskedNode, alone: bool, now_ms: u64) -> Vec<Finding> {
    let at = without_secrets(&node.url);
    let answers = match &node.answers {
        Ok(answers) => answers,
        Err(why) => return vec![not_reached(&at, node, why, alone)],
    };
    if let Err(error) = &answers.health
        && !answers.is_strange("/healthz")
    {
        return vec![if is_silence(error) {
            no_answer(&at, error, alone)
        } else {
            odd_answer(&at, error)
        }];
    }
    let mut findings = vec![address(&at, node, answers)];
    findings.extend(ready(&at, answers));
    findings.extend(certificate(&at, answers, now_ms));
    findings.extend(identity(&at, answers));
    findings.extend(clock(&at, answers));
    findings.extend(other_version(&at, answers));
    match &answers.metrics {
        Ok(metrics) => findings.extend(figures::all(&at, metrics, now_ms)),
        Err(error) => findings.push(no_figures(&at, error)),
    }
    findings
}

fn not_reached(at: &str, node: &AskedNode, why: &NotReached, alone: bool) -> Finding {
    let finding = |what: String| {
        if alone {
            Finding::unknown("address", at, what)
        } else {
            Finding::problem("address", at, what)
        }
    };
    match why {
        NotReached::Name(why) => finding(format!("its name is not resolved: {why}"))
            .next("correct --authority or PALISADE_AUTHORITY, or look at the name service: getent hosts NAME"),
        NotReached::Connection(why) => {
            let found = if node.addresses.is_empty() {
                String::new()
            } else {
                format!(" ({})", node.addresses.join(", "))
            };
            finding(format!("no connection{found}: {why}"))
                .next("look whether a server runs and listens there: systemctl status palisade; ss -ltn")
        }
    }
}

fn no_answer(at: &str, error: &Error, alone: bool) -> Finding {
    let what = format!(
        "it accepts connections and does not answer: {}",
        why(at, error)
    );
    let finding = if alone {
        Finding::unknown("address", at, what)
    } else {
        Finding::problem("address", at, what)
    };
    finding.next("read its log: journalctl -u palisade; docs: operate/runbook/hung-node.md")
}

/// Whether it said nothing in time, so that nothing is known of it.
fn is_silence(error: &Error) -> bool {
    matches!(error, Error::Unreachable(why) if why.contains("no answer within"))
}

/// A certificate that is refused, another program, or a server that refuses everybody.
fn odd_answer(at: &str, error: &Error) -> Finding {
    let next = if at.starts_with("https://") {
        "correct the certificates or the scheme; docs: operate/runbook/certificates.md"
    } else {
        "correct the port or the scheme: look what listens there with ss -ltnp"
    };
    Finding::problem(
        "address",
        at,
        format!("no lock server can be asked there: {}", why(at, error)),
    )
    .next(next)
}

/// The parts of its answers whose form this program does not know, and so does not judge.
fn other_version(at: &str, answers: &NodeAnswers) -> Option<Finding> {
    let client = env!("CARGO_PKG_VERSION");
    let parts: Vec<&str> = answers
        .strange
        .iter()
        .map(|path| match *path {
            "/healthz" => "its health",
            "/readyz" => "whether it grants locks",
            "/v1/whoami" => "whom it takes this client for",
            _ => "its cluster",
        })
        .collect();
    if parts.is_empty() {
        return None;
    }
    let parts = parts.join(", ");
    let (server, next) = match answers.version.as_deref() {
        Some(server) if server != client => (
            format!("it has version {server}, and this client {client}"),
            format!("install version {server} here, and type this again"),
        ),
        Some(_) => (
            format!("it says that it has version {client}, as this client"),
            "look what listens there: ss -ltnp".to_owned(),
        ),
        None => (
            format!("it does not say its version, and this client has {client}"),
            "ask there, install that version here, and type this again: palisade --version"
                .to_owned(),
        ),
    };
    let what = format!("{server}; in a form that this client does not know: {parts}");
    let data = json!({"client": client, "server": answers.version, "paths": answers.strange});
    Some(Finding::unknown("version", at, what).next(next).data(data))
}

fn address(at: &str, node: &AskedNode, answers: &NodeAnswers) -> Finding {
    let took = millis(answers.took.as_millis());
    let named = node.addresses.iter().any(|found| !at.contains(&**found));
    let what = if named {
        format!("answers in {took}, at {}", node.addresses.join(", "))
    } else {
        format!("answers in {took}")
    };
    Finding::ok("address", at, what).data(json!({
        "addresses": node.addresses,
        "answered_ms": answers.took.as_millis(),
    }))
}

/// Whether it can grant locks, or knows the node that can.
fn ready(at: &str, answers: &NodeAnswers) -> Option<Finding> {
    let health = answers.health.as_ref().ok();
    if health.is_some_and(|health| health.status == "starting") {
        let what = "it is starting: it reads its log, or waits for the other nodes";
        return Some(Finding::warning("serving", at, what).next("type this again in a minute"));
    }
    Some(match &answers.ready {
        Ok(ready) => Finding::ok(
            "serving",
            at,
            match &ready.leader {
                Some(leader) => format!("forwards to the leader, {leader}"),
                None => "grants locks".to_owned(),
            },
        ),
        Err(_) if answers.is_strange("/readyz") => return None,
        Err(error) => {
            let next = if health.is_some_and(|health| health.log_full) {
                "free some of the disk; docs: operate/runbook/disk-full.md"
            } else {
                "palisade cluster status; docs: operate/runbook/no-majority.md"
            };
            let what = format!("it cannot grant locks: {}", why(at, error));
            Finding::problem("serving", at, what).next(next)
        }
    })
}

fn certificate(at: &str, answers: &NodeAnswers, now_ms: u64) -> Option<Finding> {
    let ends = answers
        .health
        .as_ref()
        .ok()?
        .certificate_expires_at
        .as_ref()?;
    let second = ends.parse::<jiff::Timestamp>().ok()?.as_second();
    let second = u64::try_from(second).unwrap_or(0);
    let next = "put a new certificate and its key into the server's files: palisade auth cert HOST; it is taken without a restart";
    Some(expiry(
        "certificate",
        at,
        "its certificate",
        second,
        CERTIFICATE_DAYS,
        now_ms,
        next,
    ))
}

/// When something ends, by the wall clock of this machine.
pub(super) fn expiry(
    about: &'static str,
    at: &str,
    subject: &str,
    second: u64,
    notice_days: u64,
    now_ms: u64,
    next: &str,
) -> Finding {
    let now = now_ms / 1_000;
    let left = second.saturating_sub(now);
    let data = json!({"expires": second, "days": left / DAY});
    let finding = if second <= now {
        let ago = millis((now - second).saturating_mul(1_000));
        Finding::problem(about, at, format!("{subject} ended {ago} ago")).next(next)
    } else if left < notice_days * DAY {
        Finding::warning(about, at, format!("{subject} ends in {}", days(left))).next(next)
    } else {
        Finding::ok(about, at, format!("{subject} ends in {}", days(left)))
    };
    finding.data(data)
}

fn days(seconds: u64) -> String {
    match seconds / DAY {
        0 => millis(seconds.saturating_mul(1_000)),
        1 => "1 day".to_owned(),
        days => format!("{days} days"),
    }
}

fn identity(at: &str, answers: &NodeAnswers) -> Option<Finding> {
    Some(match &answers.whoami {
        Ok(Whoami { reply, .. }) => {
            let data = json!({"principal": reply.principal, "authority": reply.authority, "incarnation": reply.incarnation});
            let finding = match &reply.principal {
                Some(principal) => {
                    let what = format!("this client is {principal} at authority {}", reply.authority);
                    Finding::ok("identity", at, what)
                }
                None if is_exposed(at) => {
                    let what = format!(
                        "authority {} has no access file: everybody who reaches this address may take and break any lock",
                        reply.authority
                    );
                    Finding::warning("identity", at, what)
                        .next("listen on 127.0.0.1, or name the callers: palisade serve --access FILE; docs: operate/access.md")
                }
                None => {
                    let what = format!("authority {}; it has no access file", reply.authority);
                    Finding::ok("identity", at, what)
                }
            };
            finding.data(data)
        }
        Err(Error::Refused { code, message }) if code == Code::Unauthenticated.name() => {
            Finding::problem("identity", at, format!("this client is not known there: {message}"))
                .next("name your credential: --token-file FILE, PALISADE_TOKEN, or --client-cert with --client-key")
        }
        Err(Error::Refused { code, .. }) if code == Code::NotFound.name() => {
            Finding::note("identity", at, "its version does not say whom it takes this client for")
        }
        Err(_) if answers.is_strange("/v1/whoami") => return None,
        Err(error) => Finding::unknown("identity", at, why(at, error)).next("type this again in a moment"),
    })
}

/// Whether other machines reach it, and nothing encrypts or identifies.
fn is_exposed(at: &str) -> bool {
    let Some(place) = at.strip_prefix("http://") else {
        return false;
    };
    let host = place.split('/').next().unwrap_or_default();
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    let host = host.trim_matches(['[', ']']);
    let loopback = host
        .parse::<std::net::IpAddr>()
        .is_ok_and(|ip| ip.is_loopback());
    !loopback && host != "localhost"
}

/// The server read its clock at some moment between the question and the answer.
fn clock(at: &str, answers: &NodeAnswers) -> Option<Finding> {
    let Whoami {
        reply,
        asked_ms,
        heard_ms,
    } = answers.whoami.as_ref().ok()?;
    let there = reply.time.parse::<jiff::Timestamp>().ok()?.as_millisecond();
    let there = u64::try_from(there).ok()?;
    let (ahead, behind) = (
        there.saturating_sub(*heard_ms),
        asked_ms.saturating_sub(there),
    );
    let (apart, way) = if ahead > 0 {
        (ahead, "ahead of")
    } else {
        (behind, "behind")
    };
    let middle = i128::from(asked_ms.midpoint(*heard_ms));
    let data = json!({"difference_ms": (i128::from(there) - middle) as i64});
    let finding = if apart <= SKEW_MS {
        let bound = millis(heard_ms.saturating_sub(*asked_ms) + apart);
        Finding::ok(
            "clock",
            at,
            format!("agrees with this machine's, within {bound}"),
        )
    } else {
        let what = format!(
            "its clock is {} {way} this machine's; leases do not depend on it",
            millis(apart)
        );
        let (finding, effect) = if apart > FAR_MS {
            (
                Finding::problem as fn(&'static str, &str, String) -> Finding,
                "; certificates and tokens do, and times in histories",
            )
        } else {
            (
                Finding::warning as fn(&'static str, &str, String) -> Finding,
                "; times in logs and histories do",
            )
        };
        finding("clock", at, what + effect)
            .next("compare both with a third clock, and synchronise: timedatectl; chronyc tracking")
    };
    Some(finding.data(data))
}

fn no_figures(at: &str, error: &Error) -> Finding {
    let left_out = "disk, descriptors and keys were not looked at";
    match error {
        Error::Refused { code, .. }
            if code == Code::Forbidden.name() || code == Code::Unauthenticated.name() =>
        {
            Finding::note(
                "figures",
                at,
                format!("this client may not read its metrics, so {left_out}"),
            )
            .next("type this with the credential of an operator, who may observe all locks")
        }
        other => Finding::unknown("figures", at, format!("{}; {left_out}", why(at, other))),
    }
}

/// The reason without the address, which the finding names.
fn why(at: &str, error: &Error) -> String {
    error.to_string().replacen(&format!("{at}: "), "", 1)
}

#[cfg(test)]
pub(super) mod tests {
    use palisade_core::Span;
    use palisade_proto::json::{HealthReply, ReadyReply, WhoamiReply};

    use super::super::finding::Severity;
    use super::super::node::Metrics;
    use super::*;

    pub(in super::super) const NOW: u64 = 1_790_000_000_000;

    fn timestamp(ms: u64) -> String {
        let at = jiff::Timestamp::from_millisecond(i64::try_from(ms).unwrap()).unwrap();
        format!("{at:.3}")
    }

    fn refused<T>(code: Code) -> Result<T, Error> {
        Err(Error::Refused {
            code: code.name().to_owned(),
            message: "no".to_owned(),
        })
    }

    /// A single server that is well.
    fn well() -> NodeAnswers {
        NodeAnswers {
            health: Ok(HealthReply {
                status: "serving".to_owned(),
                log_full: false,
                certificate_expires_at: None,
            }),
            took: Span::from_millis(1),
            ready: Ok(ReadyReply {
                status: "leading".to_owned(),
                leader: None,
            }),
            whoami: Ok(Whoami {
                reply: WhoamiReply {
                    principal: None,
                    authority: "a".to_owned(),
                    incarnation: "i".to_owned(),
                    version: "1.0.0".to_owned(),
                    time: timestamp(NOW),
                },
                asked_ms: NOW,
                heard_ms: NOW + 10,
            }),
            cluster: refused(Code::Refused),
            metrics: Ok(Metrics::of(
                "palisade_disk_free_bytes 9000000000\nprocess_open_fds 20\nprocess_max_fds 1024\n",
            )),
            version: Some("1.0.0".to_owned()),
            strange: Vec::new(),
        }
    }

    fn seen(url: &str, change: impl FnOnce(&mut NodeAnswers)) -> Vec<Finding> {
        let mut answers = well();
        change(&mut answers);
        let node = AskedNode {
            url: url.to_owned(),
            addresses: vec!["127.0.0.1".to_owned()],
            answers: Ok(Box::new(answers)),
        };
        super::node(&node, false, NOW)
    }

    /// The state of the one finding about something.
    pub(in super::super) fn state(findings: &[Finding], about: &str) -> Option<Severity> {
        let found = findings.iter().find(|finding| finding.about == about)?;
        assert_eq!(
            found.next.is_some(),
            !matches!(found.state, Severity::Ok),
            "{found:?}"
        );
        Some(found.state)
    }

    pub(in super::super) const HERE: &str = "http://127.0.0.1:7420";

    /// The control of all tests below.
    #[test]
    fn a_server_that_is_well_has_nothing_but_good_findings() {
        let findings = seen(HERE, |_| {});
        assert!(
            findings.iter().all(|finding| finding.state == Severity::Ok),
            "{findings:?}"
        );
        let about: Vec<_> = findings.iter().map(|finding| finding.about).collect();
        assert_eq!(
            about,
            [
                "address",
                "serving",
                "identity",
                "clock",
                "disk",
                "descriptors"
            ]
        );
    }

    #[test]
    fn a_clock_that_differs_is_found_beyond_the_time_of_the_answer() {
        for (ahead, expected) in [
            (0_i64, Severity::Ok),
            (1_900, Severity::Ok),
            (-1_900, Severity::Ok),
            (2_100, Severity::Warning),
            (-2_100, Severity::Warning),
            (61_000, Severity::Problem),
            (-61_000, Severity::Problem),
        ] {
            let findings = seen(HERE, |answers| {
                let Ok(introduction) = &mut answers.whoami else {
                    unreachable!()
                };
                introduction.reply.time = timestamp(NOW.saturating_add_signed(ahead));
            });
            assert_eq!(state(&findings, "clock"), Some(expected), "{ahead}");
        }
        // An answer that took long says nothing about the clock.
        let findings = seen(HERE, |answers| {
            let Ok(introduction) = &mut answers.whoami else {
                unreachable!()
            };
            introduction.heard_ms = NOW + 3_000;
            introduction.reply.time = timestamp(NOW + 3_000);
        });
        assert_eq!(state(&findings, "clock"), Some(Severity::Ok));
    }

    #[test]
    fn a_certificate_that_ends_soon_is_a_warning_and_one_that_ended_a_problem() {
        let day = 86_400_000;
        for (ends, expected) in [
            (NOW + 8 * day, Severity::Ok),
            (NOW + 6 * day, Severity::Warning),
            (NOW - day, Severity::Problem),
        ] {
            let findings = seen("https://127.0.0.1:7420", |answers| {
                let Ok(health) = &mut answers.health else {
                    unreachable!()
                };
                health.certificate_expires_at = Some(timestamp(ends));
            });
            assert_eq!(state(&findings, "certificate"), Some(expected), "{ends}");
        }
    }

    #[test]
    fn an_unknown_caller_an_open_address_and_a_full_disk_are_found() {
        let findings = seen(HERE, |answers| {
            answers.whoami = refused(Code::Unauthenticated)
        });
        assert_eq!(state(&findings, "identity"), Some(Severity::Problem));
        let findings = seen("http://10.0.0.1:7420", |_| {});
        assert_eq!(state(&findings, "identity"), Some(Severity::Warning));
        let findings = seen(HERE, |answers| answers.ready = refused(Code::Unavailable));
        assert_eq!(state(&findings, "serving"), Some(Severity::Problem));
        let findings = seen(HERE, |answers| answers.metrics = refused(Code::Forbidden));
        assert_eq!(state(&findings, "figures"), Some(Severity::Note));
    }

    #[test]
    fn an_address_that_does_not_answer_is_a_problem_unless_it_is_the_only_one() {
        let silent = AskedNode {
            url: HERE.to_owned(),
            addresses: Vec::new(),
            answers: Err(NotReached::Connection("refused".to_owned())),
        };
        for (alone, expected) in [(true, Severity::Unknown), (false, Severity::Problem)] {
            let findings = super::node(&silent, alone, NOW);
            assert_eq!(state(&findings, "address"), Some(expected));
        }
    }
}
