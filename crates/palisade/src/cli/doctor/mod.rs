//! `palisade doctor`: looks at everything that an operator asks about first, and says what to type next.
//!
//! ```text
//!   addresses ─► node.rs, all at once, each question with its bound ─► judge.rs, figures.rs (one node), together.rs   ┐
//!   this client's files ─► here.rs    --fence URL ─► one thread each    --grant ─► one lock of its own, released      ├─► finding.rs
//!   DIR ─► directory.rs: a directory or a backup, read only                                                          ┘
//! ```
//!
//! Without --grant, nothing is changed anywhere. Secrets are never printed: not a key, not a token, not a URL's password.

mod directory;
mod figures;
mod finding;
mod here;
mod judge;
mod node;
mod together;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use futures_util::future::join_all;
use palisade_client::clock::{BootClock, Clock as _};
use palisade_client::{Options, without_secrets};
use palisade_pipeline::clock::wall;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::args::AuthorityArgs;
use super::cluster::nodes;
use super::failure::{Failure, is_palisade};
use super::output::{Out, millis};
use super::runtime::runtime;
use super::{fence, help};
use finding::Finding;
use node::AskedNode;

/// `palisade doctor`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::DOCTOR_AFTER)]
pub(crate) struct DoctorArgs {
    /// A data directory or a backup to look at, in place of servers and fences. A server may run on it.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "grant")]
    dir: Option<PathBuf>,
    /// Acquire and release a lock, too, named palisade-doctor/ and a random number, and say how long that took. It uses up
    /// one fencing token.
    #[arg(long)]
    grant: bool,
    /// Look at the fences of this location, too: postgres://…, mysql://…, sqlite:///FILE, redis://… or file:///FOLDER. May
    /// be repeated. Put a URL with a password into PALISADE_FENCE_URL, several with blanks between them.
    #[arg(
        long,
        value_name = "URL",
        env = "PALISADE_FENCE_URL",
        hide_env_values = true,
        value_delimiter = ' '
    )]
    fence: Vec<String>,
    #[command(flatten)]
    connection: AuthorityArgs,
}

/// Looks, prints the findings, and returns the exit status.
pub(super) fn carry_out(args: &DoctorArgs, out: Out) -> Result<u8, Failure> {
    let findings = match &args.dir {
        Some(dir) => directory::examine(dir, wall().0),
        None => {
            let runtime = runtime()?;
            let found = runtime.block_on(online(args));
            // A name service or a file system that hangs keeps its thread; it must not keep this program.
            runtime.shutdown_background();
            found?
        }
    };
    finding::report(&findings, out)
}

async fn online(args: &DoctorArgs) -> Result<Vec<Finding>, Failure> {
    let fences = join_all(args.fence.iter().map(|url| fences(url)));
    let (servers, client, grant, fences) =
        tokio::join!(servers(args), client(args), grant(args), fences);
    let mut findings = client;
    findings.extend(servers?);
    findings.extend(grant);
    findings.extend(fences);
    Ok(findings)
}

/// Every node that was named, and then those that the named ones know.
async fn servers(args: &DoctorArgs) -> Result<Vec<Finding>, Failure> {
    let connection = &args.connection;
    if !is_palisade(&connection.authority) {
        return Ok(vec![another(connection).await?]);
    }
    let at = without_secrets(&connection.authority);
    let named = connection.clone();
    let made = tokio::task::spawn_blocking(move || nodes(&named));
    let nodes = match timeout(PATIENCE, made).await {
        Ok(Ok(Ok(nodes))) => nodes,
        Ok(Ok(Err(failure))) => {
            let finding = Finding::unknown("address", &at, failure.message);
            return Ok(vec![match failure.hint {
                Some(hint) => finding.next(hint),
                None => finding,
            }]);
        }
        _ => {
            return Ok(vec![Finding::unknown(
                "address",
                &at,
                "the files of the credentials cannot be read in time",
            )]);
        }
    };
    let given = nodes.urls();
    let mut seen = join_all(given.iter().map(|url| AskedNode::ask(&nodes, url))).await;
    // A node that has just joined may know the leader alone, which knows the others.
    for _ in 0..2 {
        let others = others(&seen);
        seen.extend(join_all(others.iter().map(|url| AskedNode::ask(&nodes, url))).await);
    }
    let alone = seen.iter().all(|node| node.answers().is_none());
    let now = wall().0;
    let mut findings: Vec<Finding> = seen
        .iter()
        .flat_map(|node| judge::node(node, alone, now))
        .collect();
    findings.extend(together::all(&seen, given, env!("CARGO_PKG_VERSION")));
    Ok(findings)
}

/// The members' addresses that were not asked; at most so many that a strange answer costs little.
fn others(seen: &[AskedNode]) -> Vec<String> {
    const MOST: usize = 32;
    let asked: BTreeSet<&str> = seen
        .iter()
        .map(|node| node.url.trim_end_matches('/'))
        .collect();
    // A node that was given under another name is known by its id.
    let known: BTreeSet<&str> = seen
        .iter()
        .filter_map(|node| Some(&*node.cluster()?.node))
        .collect();
    let named = seen.iter().filter_map(AskedNode::cluster).flat_map(|view| {
        let leader = view.leader.as_deref().zip(view.leader_url.as_deref());
        let members = view.members.iter();
        members
            .filter_map(|member| Some((&*member.node, member.url.as_deref()?)))
            .chain(leader)
    });
    let urls = named
        .filter(|(node, _)| !known.contains(node))
        .map(|(_, url)| url)
        .filter(|url| !asked.contains(url.trim_end_matches('/')) && !url.starts_with("unix:"));
    let urls: BTreeSet<&str> = urls.collect();
    urls.into_iter().take(MOST).map(str::to_owned).collect()
}

/// Another system than a Palisade server: whether it answers is all that it tells.
async fn another(connection: &AuthorityArgs) -> Result<Finding, Failure> {
    let at = without_secrets(&connection.authority);
    if connection.is_redlock() {
        return Err(
            Failure::usage("redlock:// has no connection that could be looked at")
                .hint("look at each of its primaries: palisade doctor --fence redis://HOST"),
        );
    }
    let begin = BootClock.now();
    let connected = timeout(PATIENCE, connection.connect(Options::default())).await;
    let took = millis(BootClock.now().since(begin).as_millis());
    Ok(match connected {
        Ok(Ok(_)) => Finding::ok(
            "address",
            &at,
            format!("answers in {took}; such an authority does not tell more"),
        ),
        Ok(Err(error)) => {
            Finding::unknown("address", &at, format!("{error:#}")).next("is it running there?")
        }
        Err(_) => Finding::unknown("address", &at, silent()).next("is it running there?"),
    })
}

/// The files that this client names may be on another machine, which may hang.
async fn client(args: &DoctorArgs) -> Vec<Finding> {
    let connection = args.connection.clone();
    let look = tokio::task::spawn_blocking(move || here::credentials(&connection, wall().0));
    match timeout(PATIENCE, look).await {
        Ok(Ok(findings)) => findings,
        _ => vec![
            Finding::unknown(
                "credential",
                "here",
                "the files of the credentials cannot be read in time",
            )
            .next("look at the disk that they are on: ls -l FILE"),
        ],
    }
}

/// Acquires a lock that nobody else has, and releases it.
async fn grant(args: &DoctorArgs) -> Option<Finding> {
    if !args.grant {
        return None;
    }
    let at = without_secrets(&args.connection.authority);
    let held = async {
        let client = args.connection.connect(Options::default()).await?;
        let begin = BootClock.now();
        let mut number = [0; 8];
        // Without chance, it would be a lock that another doctor may have.
        let _ = getrandom::fill(&mut number);
        let lock = format!("{PREFIX}{:016x}", u64::from_be_bytes(number));
        let lease = client.lock(&lock).ttl(TTL).acquire().await?;
        let took = BootClock.now().since(begin).as_millis();
        lease.release().await?;
        Ok::<u64, palisade_client::Error>(took)
    };
    Some(match timeout(PATIENCE, held).await {
        Ok(Ok(ms)) => granted(&at, ms),
        Ok(Err(error)) => Finding::unknown("grant", &at, format!("{error:#}")).next(format!(
            "a client needs the verb hold on {PREFIX} for this; or leave out --grant"
        )),
        Err(_) => Finding::problem(
            "grant",
            &at,
            format!("no lock was granted within {} s", PATIENCE.as_secs()),
        )
        .next("palisade cluster status; docs: operate/runbook/no-majority.md"),
    })
}

fn granted(at: &str, ms: u64) -> Finding {
    let what = format!("a lock was granted after {}", millis(ms));
    let finding = if ms > SLOW_MS {
        Finding::warning("grant", at, what)
            .next("compare palisade_sync_seconds in /metrics with the disk's own time; docs: operate/sizing.md")
    } else {
        Finding::ok("grant", at, what)
    };
    finding.data(json!({"granted_ms": ms}))
}

/// A thread of its own for each location: some of their clients wait for a file or a name without a bound.
async fn fences(url: &str) -> Finding {
    let at = without_secrets(url);
    let (found, answer) = oneshot::channel();
    let asked = url.to_owned();
    let thread = std::thread::Builder::new().spawn(move || {
        let _ = found.send(runtime().and_then(|runtime| runtime.block_on(fence::look(&asked))));
    });
    let next = "correct the URL, or look whether it runs: palisade fence ls --url URL";
    if let Err(error) = thread {
        return Finding::unknown("fences", &at, error.to_string()).next(next);
    }
    let fences = match timeout(PATIENCE, answer).await {
        Ok(Ok(Ok(fences))) => fences,
        Ok(Ok(Err(failure))) => {
            let next = failure.hint.as_deref().unwrap_or(next);
            return Finding::unknown("fences", &at, failure.message).next(next);
        }
        Ok(Err(_)) => {
            return Finding::unknown("fences", &at, "the look at it ended early").next(next);
        }
        Err(_) => return Finding::unknown("fences", &at, silent()).next(next),
    };
    let data = json!({"resources": fences.resources, "open": fences.doors});
    let count = match fences.resources {
        1 => "1 resource is fenced".to_owned(),
        many => format!("{many} resources are fenced"),
    };
    let finding = match (&fences.doors[..], fences.resources) {
        ([], 0) => Finding::note(
            "fences",
            &at,
            "nothing is fenced there: a late writer is not stopped",
        )
        .next("palisade fence install KIND URL TABLE; docs: use/fences.md"),
        ([], _) => Finding::ok("fences", &at, format!("{count}, and no door is open")),
        (doors, _) => {
            let what = format!("{count}, and these doors are open: {}", doors.join("; "));
            Finding::warning("fences", &at, what)
                .next("close them as each line says, then look again: palisade fence ls --url URL")
        }
    };
    finding.data(data)
}

fn silent() -> String {
    format!("no answer within {} s", PATIENCE.as_secs())
}

/// For everything that is more than one question: the program ends soon after this.
const PATIENCE: Duration = Duration::from_secs(8);

/// The locks of --grant.
const PREFIX: &str = "palisade-doctor/";
const TTL: Duration = Duration::from_secs(10);

/// A grant costs one sync of a disk, or of a majority's.
const SLOW_MS: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::finding::Severity;
    use super::*;

    #[test]
    fn a_slow_grant_is_a_warning() {
        assert_eq!(granted("a", 20).state, Severity::Ok);
        assert_eq!(granted("a", 1_500).state, Severity::Warning);
    }
}
