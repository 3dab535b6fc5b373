//! What is done to a world while it works. All draws come from the seed, the same for every arm.

mod clocks;
mod disks;
mod network;
mod signals;

use clap::ValueEnum;
use serde::Serialize;

use super::stop::Stop;
use super::world::World;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Nemesis {
    /// Nothing is done: not one reject may come.
    None,
    /// SIGSTOP of a holder between its read and its write, for 0.8 to 2 times its lease.
    Holder,
    /// SIGSTOP of any client, for 0.1 to 2 times a lease.
    Clients,
    /// SIGSTOP of the authority, for 0.1 to 2 times a lease.
    PauseAuthority,
    /// SIGSTOP of the resource, for 0.1 to 2 times a lease.
    PauseResource,
    /// SIGKILL of a client; another process takes its place.
    KillClients,
    /// SIGKILL of the authority, and a start on the same data.
    KillAuthority,
    /// SIGKILL of the resource, and a start on the same data.
    KillResource,
    /// What is sent to the authority and to the resource, and what they answer, is delayed and held back.
    Delay,
    /// Requests reach the resource late, twice, and after ones that were sent later.
    Duplicate,
    /// What a third of the workers send to a server, or to both, vanishes: network namespaces.
    Partition,
    /// Every process's wall clock jumps by up to an hour, to and fro.
    WallClock,
    /// Every process's other clocks go half or twice as fast.
    ClockRate,
    /// The disks of authority and resource fill up and are freed again.
    DiskFull,
    /// The k-th fdatasync of the authority fails, then that of the resource, for k = 1 ..= 200 (fewer where
    /// fewer than 10,000 adds are asked for).
    FailedSync,
    /// For Redlock: two of its five primaries are away for a while, and when they are back the clock of another jumps.
    OneClock,
}

impl Nemesis {
    /// Its name on the command line.
    pub(super) fn word(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Works until told to stop.
    ///
    /// # Errors
    /// What could not be brought back.
    pub(super) fn run(self, world: &World, stop: &Stop) -> Result<(), String> {
        match self {
            Nemesis::None => Ok(()),
            Nemesis::Holder => {
                signals::each_team(world, |team, random| {
                    signals::pause_holders(world, team, random, stop);
                });
                Ok(())
            }
            Nemesis::Clients => {
                signals::each_team(world, |team, random| {
                    signals::pause_clients(world, team, random, stop);
                });
                Ok(())
            }
            Nemesis::PauseAuthority => {
                signals::pause_server(world, signals::Server::Authority, stop);
                Ok(())
            }
            Nemesis::PauseResource => {
                signals::pause_server(world, signals::Server::Resource, stop);
                Ok(())
            }
            Nemesis::KillClients => signals::kill_clients(world, stop),
            Nemesis::KillAuthority => signals::kill_server(world, signals::Server::Authority, stop),
            Nemesis::KillResource => signals::kill_server(world, signals::Server::Resource, stop),
            Nemesis::Delay => {
                network::delay(world, stop);
                Ok(())
            }
            // The proxy draws for each request.
            Nemesis::Duplicate => Ok(()),
            Nemesis::Partition => network::partition(world, stop),
            Nemesis::WallClock => clocks::jump(world, stop),
            Nemesis::ClockRate => clocks::run_wrong(world, stop),
            Nemesis::DiskFull => disks::fill(world, stop),
            Nemesis::FailedSync => disks::fail_syncs(world, stop),
            Nemesis::OneClock => clocks::jump_one(world, stop),
        }
    }

    /// How long a worker thinks, in leases: where nobody aims at the thinking, work goes on faster.
    pub(super) fn think(self) -> (f64, f64) {
        match self {
            Nemesis::None => (0.0, 0.002),
            Nemesis::Holder => (0.8, 2.0),
            // Long enough for a lease to end in it when clocks disagree, or renewals do not get through.
            Nemesis::Delay | Nemesis::Partition | Nemesis::ClockRate | Nemesis::OneClock => {
                (0.2, 1.0)
            }
            _ => (0.02, 0.3),
        }
    }

    /// Elements that a worker adds under one grant, each by a write of its own.
    pub(super) fn adds_per_grant(self) -> u64 {
        match self {
            // A late duplicate must not undo the same holder's next write.
            Nemesis::Duplicate => 2,
            _ => 1,
        }
    }

    /// Bytes that each element has beside its name: where room is short, sets are to need it.
    pub(super) fn padding(self) -> usize {
        match self {
            Nemesis::DiskFull => 1_000,
            _ => 0,
        }
    }

    /// What it does, in a sentence.
    pub(super) fn help(self) -> String {
        let help = self.to_possible_value();
        let help = help.and_then(|value| value.get_help().map(ToString::to_string));
        help.unwrap_or_default()
    }
}
