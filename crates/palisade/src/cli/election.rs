//! `observe` and `proclaim`: the leader of an election and its value.

use palisade_client::{Leader, Options, Proclamation};
use serde_json::json;

use super::args::{ObserveArgs, ProclaimArgs};
use super::failure::Failure;
use super::grant::{not_held, over, stale};
use super::inspect::printable;
use super::output::{Out, now};

pub(super) async fn observe(args: &ObserveArgs, out: Out) -> Result<u8, Failure> {
    let (name, url) = (args.name.as_str(), &args.connection.authority);
    let failed = |error| Failure::of(&error, url);
    let client = args.connection.open(Options::default()).await?;
    if args.once {
        let leader = client.leader(name).await.map_err(failed)?;
        print(name, leader.as_ref(), out)?;
        return Ok(u8::from(leader.is_none()));
    }
    let mut observer = client.observe(name).await.map_err(failed)?;
    loop {
        let leader = observer.next().await.map_err(failed)?;
        print(name, leader.as_ref(), out)?;
    }
}

fn print(name: &str, leader: Option<&Leader>, out: Out) -> Result<(), Failure> {
    if out.json {
        return out.value(&json!({
            "resource_id": name,
            "client_id": leader.map(|leader| leader.client.as_str()),
            "fencing_token": leader.map(|leader| leader.token.get()),
            "value": leader.and_then(|leader| leader.value.as_deref()),
        }));
    }
    let line = match leader {
        None => format!("nobody leads {}", out.strong(name)),
        Some(leader) => {
            let value = leader.value.as_deref().map(printable);
            format!(
                "{}  leads {name}  token {}  {}",
                out.strong(&value.unwrap_or_else(|| "(no value)".to_owned())),
                leader.token,
                leader.client
            )
        }
    };
    out.text(&format!("{}  {line}", out.faint(&now())))
}

pub(super) async fn proclaim(args: &ProclaimArgs, out: Out) -> Result<(), Failure> {
    let grant = args.grant.named()?;
    let url = &args.grant.connection.authority;
    let client = args.grant.connection.open(Options::default()).await?;
    let answer = client.proclaim(&grant, &args.value).await;
    let lock = grant.lock.as_str();
    match answer.map_err(|error| Failure::of(&error, url))? {
        Proclamation::Proclaimed { revision } if out.json => {
            out.value(&json!({"resource_id": lock, "value": args.value, "revision": revision}))
        }
        Proclamation::Proclaimed { .. } => out.text(&format!(
            "{} now says: {}",
            out.strong(lock),
            printable(&args.value)
        )),
        Proclamation::Ended(how) => Err(over(lock, how)),
        Proclamation::NotHeld => Err(not_held(lock)),
        Proclamation::Stale { highest } => Err(stale(lock, grant.token, highest)),
    }
}
