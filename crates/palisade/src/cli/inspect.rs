//! `ls`, `show`, `watch` and `break`: locks that others hold.

use palisade_client::{
    Change, Code, Ending, GrantOptions, LockMode, LockView, Notice, Options, Reopened, Resized,
    Revocation, Slots, WatchEvent,
};
use palisade_core::{LockName, Span};
use palisade_proto::json::{
    self, EventBody, HolderBody, LockReply, MissedBody, PermitsBody, QueuedBody,
};
use serde_json::json;

use super::args::{BreakArgs, LsArgs, OpenArgs, PermitsArgs, ShowArgs, WatchArgs};
use super::failure::{Failure, LOST};
use super::grant::{not_held, over, slot_list, stale};
use super::grant_options::shown;
use super::output::{Out, facts, millis, table, wall};
use super::shell::shell_word;

pub(super) async fn ls(args: &LsArgs, out: Out) -> Result<(), Failure> {
    check_prefix(&args.prefix)?;
    let url = &args.connection.authority;
    let client = args.connection.open(Options::default()).await?;
    let mut listing = client.list(&args.prefix);
    let mut rows = Vec::new();
    while let Some(view) = listing
        .next()
        .await
        .map_err(|error| Failure::of(&error, url))?
    {
        if out.json {
            out.value(&reply(&view))?;
        } else {
            rows.push(row(&view));
        }
    }
    // The server lists in its own order.
    rows.sort_unstable();
    match (out.json, rows.is_empty()) {
        (true, _) => Ok(()),
        (false, true) if args.prefix.is_empty() => out.text("no lock is held"),
        (false, true) => out.text(&format!(
            "no lock whose name starts with {} is held",
            args.prefix
        )),
        (false, false) => out.text(&listing_of(&rows, out)),
    }
}

const HEAD: [&str; 5] = ["LOCK", "TOKEN", "REMAINING", "WAITERS", "HOLDER"];

fn listing_of(rows: &[[String; 5]], out: Out) -> String {
    table(out, HEAD, [false, true, true, true, false], rows)
}

fn row(view: &LockView) -> [String; 5] {
    let (token, remaining, client) = match &view.holder {
        Some(holder) => (
            holder.token.to_string(),
            millis(holder.remaining.as_millis()),
            match (view.reader_count, kind(view)) {
                (0, _) => {
                    // Metadata stands last: the holder chose it, and must not look like an option.
                    let metadata = view.metadata.as_deref().map(printable);
                    let metadata = metadata.map_or_else(String::new, |text| format!("  {text}"));
                    format!("{}{}{metadata}", holder.client, asked_for(view.options))
                }
                (1, kind) => format!("{} ({kind})", holder.client),
                (many, kind) => format!("{} and {} more ({kind})", holder.client, many - 1),
            },
        ),
        None => (
            "-".to_owned(),
            view.delayed
                .map_or_else(|| "-".to_owned(), |delayed| millis(delayed.as_millis())),
            view.delayed.map_or("-", |_| "- (delayed)").to_owned(),
        ),
    };
    [
        view.lock.to_string(),
        token,
        remaining,
        view.waiters.to_string(),
        client,
    ]
}

/// The options of a grant, in brackets; nothing if it has none.
fn asked_for(options: GrantOptions) -> String {
    let options = shown(options).map(|(option, value)| format!("{option} {value}"));
    match options.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => none,
        some => format!(" ({some})"),
    }
}

/// The kind of grant that several holders of a lock have.
fn kind(view: &LockView) -> String {
    match view.permits {
        None => "shared".to_owned(),
        Some(permits) => counted(permits),
    }
}

/// A number of permits, in words.
fn counted(permits: u32) -> String {
    match permits {
        1 => "1 permit".to_owned(),
        _ => format!("{permits} permits"),
    }
}

pub(super) async fn show(args: &ShowArgs, out: Out) -> Result<u8, Failure> {
    let url = &args.connection.authority;
    let client = args.connection.open(Options::default()).await?;
    let view = client
        .show(&args.lock)
        .await
        .map_err(|error| Failure::of(&error, url))?;
    if out.json {
        out.value(&reply(&view))?;
    } else {
        out.text(&describe(&view, out))?;
    }
    Ok(u8::from(args.exit_code && view.holder.is_none()))
}

fn describe(view: &LockView, out: Out) -> String {
    let lock = out.strong(&view.lock);
    let Some(holder) = &view.holder else {
        let state = match view.delayed {
            None if view.waiters == 0 => return format!("{lock} is free"),
            None => "held by nobody, and kept for waiting requests".to_owned(),
            Some(delayed) => {
                let rest = millis(delayed.as_millis());
                format!("free and delayed: nobody is granted it for {rest}")
            }
        };
        let facts = facts(out, &[("waiters", view.waiters.to_string())]);
        return format!("{lock} is {state}\n{facts}{}", queue(view, out));
    };
    if let Some(permits) = view.permits {
        return describe_semaphore(view, permits, out);
    }
    if view.reader_count > 0 {
        return describe_shared(view, out);
    }
    let mut rows = vec![
        ("holder", holder.client.to_string()),
        ("fencing token", holder.token.to_string()),
        (
            "remaining",
            format!("{} unless renewed", millis(holder.remaining.as_millis())),
        ),
    ];
    rows.extend(extended(view));
    rows.extend(view.acquired_at.map(|at| ("acquired at", wall(at))));
    rows.extend(
        view.metadata
            .as_ref()
            .map(|text| ("metadata", printable(text))),
    );
    rows.extend(shown(view.options));
    rows.push(("waiters", view.waiters.to_string()));
    format!("{lock} is held\n{}{}", facts(out, &rows), queue(view, out))
}

/// How often the lease lasted longer than its last renewal said.
fn extended(view: &LockView) -> Option<(&'static str, String)> {
    let times = match view.extensions {
        0 => return None,
        1 => "once".to_owned(),
        times => format!("{times} times"),
    };
    let why = "because the server was away, and not renewed since";
    Some(("extended", format!("{times}, {why}")))
}

/// Describes a lock with its readers: the client, the start and the number of each grant.
fn describe_shared(view: &LockView, out: Out) -> String {
    let token = view.holder.as_ref().map(|holder| holder.token.to_string());
    let mut rows = vec![
        ("fencing token", token.unwrap_or_default()),
        ("readers", view.reader_count.to_string()),
    ];
    rows.extend(extended(view));
    let mut readers = view.readers.iter();
    let update = readers.find(|reader| reader.update);
    rows.extend(update.map(|update| ("in mode update", update.holder.client.to_string())));
    rows.push(("waiters", view.waiters.to_string()));
    let facts = facts(out, &rows);
    let rows = view.readers.iter().map(|reader| {
        [
            reader.id.0.to_string(),
            millis(reader.holder.remaining.as_millis()),
            wall(reader.acquired_at),
            reader.holder.client.to_string(),
            reader
                .metadata
                .as_deref()
                .map(printable)
                .unwrap_or_default(),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let head = ["GRANT ID", "REMAINING", "ACQUIRED AT", "READER", "METADATA"];
    let readers = table(out, head, [true, true, false, false, false], &rows);
    let lock = out.strong(&view.lock);
    let more = more_than(view.reader_count, rows.len());
    format!(
        "{lock} is held in shared mode\n{facts}\n\n{readers}{more}{}",
        queue(view, out)
    )
}

/// Describes a semaphore with its holders: the client, the slots, the start and the token of each
/// grant.
fn describe_semaphore(view: &LockView, permits: u32, out: Out) -> String {
    let slots = view.readers.iter().map(|holder| holder.slots);
    let free = Slots::all(permits).without(slots.fold(Slots::NONE, Slots::with));
    let facts = facts(
        out,
        &[
            ("permits", permits.to_string()),
            ("free", free.count().to_string()),
            ("waiters", view.waiters.to_string()),
        ],
    );
    let rows = view.readers.iter().map(|reader| {
        let metadata = reader.metadata.as_deref().map(printable);
        [
            slot_list(reader.slots).unwrap_or_default(),
            reader.holder.token.to_string(),
            millis(reader.holder.remaining.as_millis()),
            wall(reader.acquired_at),
            reader.holder.client.to_string(),
            metadata.unwrap_or_default(),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let head = [
        "SLOTS",
        "TOKEN",
        "REMAINING",
        "ACQUIRED AT",
        "HOLDER",
        "METADATA",
    ];
    let holders = table(out, head, [false, true, true, false, false, false], &rows);
    let lock = out.strong(&view.lock);
    let queue = queue(view, out);
    format!("{lock} is a semaphore\n{facts}\n\n{holders}{queue}")
}

/// The requests that wait, in their order; nothing if none does.
fn queue(view: &LockView, out: Out) -> String {
    let rows = view.queue.iter().map(|queued| {
        [
            mode(queued.mode),
            millis(queued.waited.as_millis()),
            millis(queued.remaining.as_millis()),
            queued.client.to_string(),
        ]
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = ["MODE", "WAITED", "REMAINING", "WAITS"];
    let queue = table(out, head, [false, true, true, false], &rows);
    format!("\n\n{queue}{}", more_than(view.waiters, rows.len()))
}

fn more_than(all: u32, shown: usize) -> String {
    match (all as usize).saturating_sub(shown) {
        0 => String::new(),
        more => format!("\n… and {more} more"),
    }
}

fn mode(mode: LockMode) -> String {
    match mode {
        LockMode::Exclusive => "exclusive".to_owned(),
        LockMode::Shared => "shared".to_owned(),
        LockMode::Update => "update".to_owned(),
        LockMode::Upgrade => "upgrade".to_owned(),
        LockMode::Permits(permits) => format!("{permits} permits"),
    }
}

/// Text from clients must not control the terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars()
        .map(|letter| {
            if letter.is_control() {
                '\u{fffd}'
            } else {
                letter
            }
        })
        .collect()
}

fn reply(view: &LockView) -> LockReply {
    let holder = view.holder.as_ref().map(|holder| HolderBody {
        client_id: holder.client.to_string(),
        fencing_token: holder.token.get(),
        remaining_ms: holder.remaining.as_millis(),
        acquired_at: view.acquired_at.map(wall),
        metadata: view.metadata.as_deref().map(str::to_owned),
        ..HolderBody::default()
    });
    let holder = holder.map(|holder| holder.with_options(view.options));
    let readers = view.readers.iter().map(|reader| HolderBody {
        client_id: reader.holder.client.to_string(),
        fencing_token: reader.holder.token.get(),
        remaining_ms: reader.holder.remaining.as_millis(),
        grant_id: Some(reader.id.0.get()),
        update: reader.update,
        slots: reader.slots.iter().collect(),
        acquired_at: Some(wall(reader.acquired_at)),
        metadata: reader.metadata.as_deref().map(str::to_owned),
        ..HolderBody::default()
    });
    let queue = view.queue.iter().map(|queued| QueuedBody {
        client_id: queued.client.to_string(),
        mode: match queued.mode {
            LockMode::Exclusive => json::LockMode::Exclusive,
            LockMode::Shared => json::LockMode::Shared,
            LockMode::Update => json::LockMode::Update,
            LockMode::Upgrade => json::LockMode::Upgrade,
            LockMode::Permits(_) => json::LockMode::Permits,
        },
        permits: queued.mode.permits().map(|permits| PermitsBody {
            count: permits.wanted().into(),
            of: permits.of().into(),
        }),
        waited_ms: queued.waited.as_millis(),
        remaining_ms: queued.remaining.as_millis(),
    });
    LockReply {
        resource_id: view.lock.to_string(),
        revision: view.revision,
        holder,
        extensions: view.extensions,
        delayed_ms: view.delayed.map(Span::as_millis),
        permits: view.permits,
        reader_count: view.reader_count,
        readers: readers.collect(),
        waiters: view.waiters,
        waited_ms: None,
        queue: queue.collect(),
        // A session is not told of it.
        trace_id: None,
    }
}

pub(super) async fn watch(args: &WatchArgs, out: Out) -> Result<(), Failure> {
    check_prefix(&args.prefix)?;
    let url = &args.connection.authority;
    let failed = |error| Failure::of(&error, url);
    let client = args.connection.open(Options::default()).await?;
    let mut watch = match args.after {
        Some(revision) => client.watch_after(&args.prefix, revision).await,
        None => client.watch(&args.prefix).await,
    }
    .map_err(failed)?;
    loop {
        let event = match watch.next().await.map_err(failed)? {
            Notice::Change(event) => event,
            Notice::Missed { missed: count, .. } => {
                missed(count, out)?;
                continue;
            }
            _ => continue,
        };
        if out.json {
            out.value(&named(&event))?
        } else {
            out.text(&format!(
                "{}  {}",
                out.faint(&wall(event.time)),
                line(&event, out)
            ))?
        }
    }
}

fn missed(missed: u64, out: Out) -> Result<(), Failure> {
    if out.json {
        return out.value(&MissedBody { missed });
    }
    out.text(&out.faint(&format!(
        "… {missed} events missed: list the locks again with palisade ls"
    )))
}

/// One event on one line; the name of the server-sent event becomes a field.
fn named(event: &WatchEvent) -> serde_json::Value {
    let (lease_duration_ms, reason, delayed) = match &event.change {
        Change::Granted { ttl } => (Some(u64::from(ttl.as_millis())), None, None),
        Change::Proclaimed => (None, None, None),
        Change::Opened { reason } => (None, Some(reason.to_string()), None),
        Change::Ended {
            reason, delayed, ..
        } => (None, reason.as_deref().map(str::to_owned), *delayed),
    };
    let body = EventBody {
        revision: event.revision,
        time: wall(event.time),
        resource_id: event.lock.to_string(),
        client_id: event.client.as_ref().map(ToString::to_string),
        fencing_token: event.token.get(),
        grant_id: event.shared.map(|id| id.0.get()),
        lease_duration_ms,
        reason,
        delayed_ms: delayed.map(Span::as_millis),
        ..EventBody::default()
    };
    let mut value = json!(body.with_options(event.options));
    value["event"] = json!(verb(&event.change));
    value
}

fn line(event: &WatchEvent, out: Out) -> String {
    let verb = out.strong(&format!("{:10}", verb(&event.change)));
    let mut line = format!("{verb}  {}  token {}", event.lock, event.token);
    if let Some(client) = &event.client {
        line.push_str(&format!("  {client}"));
    }
    if let Some(id) = event.shared {
        line.push_str(&format!("  shared, grant {}", id.0));
    }
    match &event.change {
        Change::Granted { ttl } => {
            line.push_str(&format!("  for {}", millis(ttl.as_millis().into())));
            for (option, value) in shown(event.options) {
                line.push_str(&format!("  {option} {value}"));
            }
        }
        Change::Proclaimed => {}
        Change::Opened { reason } => line.push_str(&format!("  {}", printable(reason))),
        Change::Ended {
            reason, delayed, ..
        } => {
            if let Some(reason) = reason {
                line.push_str(&format!("  {}", printable(reason)));
            }
            if let Some(delayed) = delayed {
                line.push_str(&format!("  delayed for {}", millis(delayed.as_millis())));
            }
        }
    }
    line
}

fn verb(change: &Change) -> &'static str {
    match change {
        Change::Granted { .. } => "granted",
        Change::Proclaimed => "proclaimed",
        Change::Opened { .. } => "opened",
        Change::Ended {
            how: Ending::Released,
            ..
        } => "released",
        Change::Ended {
            how: Ending::Expired,
            ..
        } => "expired",
        Change::Ended {
            how: Ending::Revoked,
            ..
        } => "revoked",
        Change::Ended {
            how: Ending::Superseded,
            ..
        } => "superseded",
    }
}

pub(super) async fn revoke(args: &BreakArgs, out: Out) -> Result<(), Failure> {
    let url = &args.connection.authority;
    let client = args.connection.open(Options::default()).await?;
    let answer = client.revoke(&args.lock, args.token, &args.reason).await;
    let lock = args.lock.as_str();
    let already = match answer.map_err(|error| Failure::of(&error, url))? {
        Revocation::Revoked => false,
        Revocation::Ended(Ending::Revoked) => true,
        // An operator has no work to stop, and a closed lock is not broken but opened.
        Revocation::Ended(how) => return Err(over(lock, how).hint(now_or_closed(lock))),
        Revocation::NotHeld => return Err(not_held(lock).hint(now_or_closed(lock))),
        Revocation::Stale { highest } => return Err(stale(lock, Some(args.token), highest)),
    };
    let token = args.token;
    if out.json {
        return out.value(&json!({
            "resource_id": lock, "revoked": true, "already_revoked": already, "fencing_token": token.get(),
        }));
    }
    out.text(&format!(
        "took {} from its holder (token {token}). The holder may still believe that it has the lock; \
         a fence refuses its writes once the next holder has claimed.",
        out.strong(lock)
    ))
}

fn now_or_closed(lock: &str) -> String {
    let lock = shell_word(lock);
    format!(
        "see who holds it now: palisade show {lock}; if nobody does and it is closed: palisade open {lock} --reason TEXT"
    )
}

pub(super) async fn reopen(args: &OpenArgs, out: Out) -> Result<(), Failure> {
    let url = &args.connection.authority;
    let client = args.connection.open(Options::default()).await?;
    let answer = client.reopen(&args.lock, &args.reason).await;
    let lock = args.lock.as_str();
    match answer.map_err(|error| Failure::of(&error, url))? {
        Reopened::NotClosed => {
            let message = format!("{lock} is not closed: it is free, or somebody holds it");
            let hint = format!("look at it: palisade show {}", shell_word(lock));
            Err(Failure::new(LOST, Code::NotHeld, message).hint(hint))
        }
        Reopened::Reopened if out.json => out.value(&json!({"resource_id": lock, "opened": true})),
        Reopened::Reopened => out.text(&format!(
            "{} is open: a waiting request has it now, or the next one will get it",
            out.strong(lock)
        )),
    }
}

pub(super) async fn resize(args: &PermitsArgs, out: Out) -> Result<(), Failure> {
    let url = &args.connection.authority;
    let client = args.connection.open(Options::default()).await?;
    let answer = client.resize(&args.lock, args.permits).await;
    let (lock, permits) = (args.lock.as_str(), args.permits);
    match answer.map_err(|error| Failure::of(&error, url))? {
        Resized::NotInUse => {
            let message = format!("nobody holds permits of {lock}, or waits for them");
            let hint = "there is no number to change: the next request for permits sets it";
            Err(Failure::new(LOST, Code::NotHeld, message).hint(hint))
        }
        Resized::Resized if out.json => {
            out.value(&json!({"resource_id": lock, "permits": permits}))
        }
        Resized::Resized => out.text(&format!(
            "{} has {}. A holder of a slot above {permits} keeps it until its grant ends. \
             Change the number in the programs that ask, too.",
            out.strong(lock),
            counted(permits)
        )),
    }
}

/// A prefix is the beginning of a name: one that no name can have is an error, not an empty result.
fn check_prefix(prefix: &str) -> Result<(), Failure> {
    if prefix.is_empty() {
        return Ok(());
    }
    let checked = LockName::new(prefix).map(drop);
    checked.map_err(|invalid| Failure::usage(invalid.to_string().replace("lock name", "prefix")))
}
