//! `palisade-lab exhaust`.

use std::io::Write as _;
use std::process::ExitCode;

use super::{Found, Scope, Weakness, search};

/// Searches every schedule of a small scope with every rule in force; then drops one rule at a time
/// and prints the shortest schedule in which something goes wrong
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The number of contenders
    #[arg(long, default_value_t = Scope::DEFAULT.clients)]
    clients: u8,
    /// How many of them only read; with any, writers may become readers
    #[arg(long, default_value_t = Scope::DEFAULT.readers)]
    readers: u8,
    /// How many of the readers ask for mode update, and may upgrade
    #[arg(long, default_value_t = Scope::DEFAULT.updates)]
    updates: u8,
    /// The number of permits, if the lock is a semaphore: each client wants one
    #[arg(long, default_value_t = Scope::DEFAULT.slots)]
    slots: u8,
    /// How many locks a client asks for at once
    #[arg(long, default_value_t = Scope::DEFAULT.locks)]
    locks: u8,
    /// The number of wishes for the lock, over all clients
    #[arg(long, default_value_t = Scope::DEFAULT.grants)]
    grants: u8,
    /// The number of writes under one grant
    #[arg(long, default_value_t = Scope::DEFAULT.writes)]
    writes: u8,
    /// The number of repeated requests
    #[arg(long, default_value_t = Scope::DEFAULT.resends)]
    resends: u8,
    /// The number of crashes, of any part
    #[arg(long, default_value_t = Scope::DEFAULT.crashes)]
    crashes: u8,
    /// Print one JSON object for each search
    #[arg(long)]
    json: bool,
}

/// Exit status: 0 if the correct configuration loses nothing and something goes wrong with every weakness, 1 if not, 2 for a
/// scope out of range.
#[must_use]
pub fn run(args: &Args) -> ExitCode {
    let scope = Scope {
        clients: args.clients,
        readers: args.readers,
        updates: args.updates,
        slots: args.slots,
        locks: args.locks,
        grants: args.grants,
        writes: args.writes,
        resends: args.resends,
        crashes: args.crashes,
    };
    let weak = Weakness::ALL.map(|weakness| (Some(weakness), weakness.scope()));
    let mut as_told = true;
    for (weakness, scope) in std::iter::once((None, scope)).chain(weak) {
        match search(weakness, scope) {
            Ok(found) => {
                // A failed write means that nobody is reading.
                let _ = std::io::stdout().write_all(print_result(&found, args.json).as_bytes());
                as_told &= found.wrong.is_some() == weakness.is_some();
            }
            Err(error) => {
                eprintln!("palisade-lab: {error}");
                return ExitCode::from(2);
            }
        }
    }
    ExitCode::from(u8::from(!as_told))
}

fn print_result(found: &Found, json: bool) -> String {
    if json {
        return serde_json::to_string(found).unwrap_or_default() + "\n";
    }
    let name = found.weakness.map_or("every rule in force", Weakness::name);
    let Some(schedule) = &found.shortest else {
        return format!(
            "{name}: 0 losing schedules in {} states ({} of the authority), {} steps deep\n",
            found.states, found.machines, found.depth
        );
    };
    let mut text = format!("{name}: loses, found after {} states:\n", found.states);
    for (number, step) in (1..).zip(schedule) {
        text += &format!("  {number:2}. {step}\n");
    }
    text
}
