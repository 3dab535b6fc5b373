//! `palisade history`: who held a lock, since when, how it ended, who waited, and who wrote late.

use clap::Args;
use palisade_pipeline::clock::wall;
use palisade_proto::json::{EndRecord, GapRecord, GrantRecord, HistoryReply, RejectionRecord};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::args::AuthorityArgs;
use super::cluster::{failed, nodes};
use super::failure::Failure;
use super::help;
use super::inspect::printable;
use super::output::{Out, facts, millis};
use super::value;

/// `palisade history`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::HISTORY_AFTER)]
pub(crate) struct HistoryArgs {
    /// The lock [default: all locks].
    #[arg(value_name = "LOCK", value_parser = value::lock, conflicts_with = "prefix")]
    lock: Option<palisade_core::LockName>,
    /// Only locks whose names start with this.
    #[arg(long, value_name = "PREFIX", default_value = "")]
    prefix: String,
    /// Only grants held at or after this instant, or this long ago: 2026-11-28T02:00:00Z, 24h.
    #[arg(long, value_name = "WHEN", value_parser = instant)]
    since: Option<String>,
    /// Only grants made at or before this instant, or this long ago.
    #[arg(long, value_name = "WHEN", value_parser = instant)]
    until: Option<String>,
    /// Only grants with this fencing token.
    #[arg(long, value_name = "N", value_parser = value::token)]
    token: Option<palisade_core::Token>,
    /// Only grants to this client.
    #[arg(long, value_name = "ID")]
    client: Option<String>,
    /// Only grants with refused late writes, the latest report first.
    #[arg(long)]
    refused: bool,
    /// At most this many grants, the latest first.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    #[command(flatten)]
    connection: AuthorityArgs,
}

/// An instant as RFC 3339, also from a length of time before now.
fn instant(text: &str) -> Result<String, String> {
    if let Ok(instant) = text.parse::<jiff::Timestamp>() {
        return Ok(format!("{instant:.3}"));
    }
    let ago = value::duration(text).map_err(|_| {
        "not an instant; write 2026-11-28T02:00:00Z, or a length of time before now, such as 24h"
            .to_owned()
    })?;
    let ago = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
    let then = wall().0.saturating_sub(ago);
    let ms = i64::try_from(then).unwrap_or(i64::MAX);
    let then = jiff::Timestamp::from_millisecond(ms).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    Ok(format!("{then:.3}"))
}

pub(super) async fn carry_out(args: &HistoryArgs, out: Out) -> Result<(), Failure> {
    let nodes = nodes(&args.connection)?;
    let (mut left, mut cursor, mut told) = (args.limit, None, 0_u32);
    loop {
        let path = path(args, left.min(1_000), cursor.as_deref());
        let page: HistoryReply = nodes.read(&path).await.map_err(|error| failed(&error))?;
        for gap in &page.gaps {
            warn(gap, out);
        }
        for grant in &page.grants {
            if out.json {
                out.value(grant)?;
            } else {
                out.text(&describe(grant, out))?;
            }
        }
        let count = u32::try_from(page.grants.len()).unwrap_or(left);
        (left, told) = (left.saturating_sub(count), told + count);
        cursor = page.next_cursor;
        if cursor.is_none() || left == 0 {
            break;
        }
    }
    if out.json {
        return Ok(());
    }
    match (told, &cursor) {
        (0, _) => out.text("no matching grant is known"),
        (_, Some(_)) => out.text(&out.faint("… there are more: raise --limit, or set --until")),
        _ => Ok(()),
    }
}

fn path(args: &HistoryArgs, limit: u32, cursor: Option<&str>) -> String {
    let lock = args.lock.as_ref().map(|lock| lock.as_str().to_owned());
    let prefix = Some(args.prefix.clone()).filter(|prefix| !prefix.is_empty());
    let parameters = [
        ("lock", lock),
        ("prefix", prefix),
        ("since", args.since.clone()),
        ("until", args.until.clone()),
        ("token", args.token.map(|token| token.to_string())),
        ("client", args.client.clone()),
        ("refused", args.refused.then(|| "true".to_owned())),
        ("cursor", cursor.map(str::to_owned)),
    ];
    let mut path = format!("/v1/history?limit={limit}");
    for (name, value) in parameters {
        if let Some(value) = value {
            let value = utf8_percent_encode(&value, NON_ALPHANUMERIC);
            path.push_str(&format!("&{name}={value}"));
        }
    }
    path
}

/// One grant for people.
fn describe(grant: &GrantRecord, out: Out) -> String {
    let mut head = format!(
        "{}  token {}  {}",
        out.strong(&grant.resource_id),
        grant.fencing_token,
        grant.client_id
    );
    if let Some(id) = grant.grant_id {
        head.push_str(&format!("  shared, grant {id}"));
    }
    if !grant.slots.is_empty() {
        head.push_str(&format!("  slots {:?}", grant.slots));
    }
    let mut rows = Vec::new();
    if grant.principal != palisade_access::ANONYMOUS {
        rows.push(("principal", grant.principal.clone()));
    }
    rows.extend((grant.metadata.as_deref()).map(|text| ("metadata", printable(text))));
    match (&grant.asked_at, grant.waited_ms) {
        (Some(asked), Some(waited)) if waited > 0 => {
            rows.push(("asked", format!("{asked}, waited {}", millis(waited))));
        }
        (None, _) => rows.push((
            "asked",
            "not known: the history did not see the grant".to_owned(),
        )),
        _ => {}
    }
    rows.push(("granted", grant.granted_at.clone()));
    match &grant.ended {
        None => rows.push(("ended", "not yet: it is held".to_owned())),
        Some(end) => {
            rows.push(("last renewed", end.renewed_at.clone()));
            rows.push(("ended", ending(grant, end)));
        }
    }
    rows.extend(
        grant
            .rejections
            .iter()
            .map(|late| ("refused", rejection(late))),
    );
    format!("{head}\n{}", facts(out, &rows))
}

fn ending(grant: &GrantRecord, end: &EndRecord) -> String {
    let mut text = format!("{}  {}", end.at, end.how);
    let instant = |text: &str| text.parse::<jiff::Timestamp>().ok();
    if let (Some(from), Some(to)) = (instant(&grant.granted_at), instant(&end.at)) {
        let held = u64::try_from(to.as_millisecond() - from.as_millisecond()).unwrap_or(0);
        text.push_str(&format!(" after {}", millis(held)));
    }
    if let Some(by) = end
        .by
        .as_deref()
        .filter(|by| *by != palisade_access::ANONYMOUS)
    {
        text.push_str(&format!(", by {by}"));
    }
    if let Some(reason) = end.reason.as_deref().filter(|reason| !reason.is_empty()) {
        text.push_str(&format!(": {}", printable(reason)));
    }
    if let Some(token) = end.new_fencing_token {
        text.push_str(&format!(", by its own client's token {token}"));
    }
    if let Some(closed) = end.delayed_ms {
        text.push_str(&format!("; closed for {} from then on", millis(closed)));
    }
    text
}

fn rejection(late: &RejectionRecord) -> String {
    let times = match late.times {
        0 | 1 => String::new(),
        times => format!(", {times} times"),
    };
    let operation = match &*late.operation {
        "" => "a write".to_owned(),
        operation => printable(operation),
    };
    format!(
        "{operation} at {}, which had seen token {}{times}; reported {}",
        printable(&late.resource),
        late.highest,
        late.reported_at
    )
}

fn warn(gap: &GapRecord, out: Out) {
    out.warning(&format!(
        "the history lacks the changes {} to {}: {}",
        gap.from_revision, gap.to_revision, gap.why
    ));
}
