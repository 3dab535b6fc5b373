//! The kinds of faults.

use clap::ValueEnum;
use serde::Serialize;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Nemesis {
    /// No fault: then no write may be rejected.
    None,
    /// SIGSTOP of a holder between its read and its write, for 0.8 to 2 times its lease.
    Holder,
    /// SIGSTOP of any client, for 0.1 to 2 times a lease.
    Clients,
    /// SIGSTOP of the authority, for 0.1 to 2 times a lease.
    PauseAuthority,
    /// SIGSTOP of the resource, for 0.1 to 2 times a lease.
    PauseResource,
    /// SIGKILL of a client; another process replaces it.
    KillClients,
    /// SIGKILL of the authority, and a restart on the same data.
    KillAuthority,
    /// SIGKILL of the resource, and a restart on the same data.
    KillResource,
    /// Delays and holds back traffic to and from the authority and the resource.
    Delay,
    /// Requests reach the resource late, twice, or after later ones.
    Duplicate,
    /// Traffic from a third of the workers to one server, or both, is dropped: network namespaces.
    Partition,
    /// Every process's wall clock jumps back and forth by up to an hour.
    WallClock,
    /// Every process's other clocks run at half or double speed.
    ClockRate,
    /// The disks of authority and resource fill up and are freed again.
    DiskFull,
    /// The k-th fdatasync of the authority fails, then that of the resource, for k = 1 ..= 200 (fewer with less than
    /// 10,000 adds).
    FailedSync,
    /// For Redlock: two of its five primaries are down for a while; when they return, the clock of another jumps.
    OneClock,
    /// With --nodes: SIGKILL of the leader, and a restart on the same data.
    KillLeader,
    /// With --nodes: SIGSTOP of the leader for 0.1 to 2.5 s.
    PauseLeader,
    /// With --nodes: cuts between nodes for 0.1 to 2.5 s: of one node, of a pair, in one direction.
    Cuts,
    /// With --nodes: every kind of fault of a cluster in random order: kills, pauses, planned stops, a rolling restart,
    /// transfers of leadership, cuts and delays.
    Nodes,
}

impl Nemesis {
    /// Its name on the command line.
    pub(in crate::chaos) fn word(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether it aims at the nodes of a cluster.
    pub(in crate::chaos) fn needs_cluster(self) -> bool {
        matches!(
            self,
            Nemesis::KillLeader | Nemesis::PauseLeader | Nemesis::Cuts | Nemesis::Nodes
        )
    }

    /// Whether it also works with a cluster: the others replace or reach into the one process of the authority.
    pub(in crate::chaos) fn fits_cluster(self) -> bool {
        let anywhere = matches!(
            self,
            Nemesis::None
                | Nemesis::Holder
                | Nemesis::Clients
                | Nemesis::PauseAuthority
                | Nemesis::PauseResource
                | Nemesis::KillClients
                | Nemesis::KillAuthority
                | Nemesis::KillResource
                | Nemesis::Duplicate
        );
        anywhere || self.needs_cluster()
    }

    /// How long a worker thinks, in leases: shorter if the nemesis does not aim at this phase.
    pub(in crate::chaos) fn think(self) -> (f64, f64) {
        match self {
            Nemesis::None => (0.0, 0.002),
            Nemesis::Holder => (0.8, 2.0),
            // Long enough for a lease to end meanwhile if clocks disagree or renewals are lost.
            Nemesis::Delay | Nemesis::Partition | Nemesis::ClockRate | Nemesis::OneClock => {
                (0.2, 1.0)
            }
            _ => (0.02, 0.3),
        }
    }

    /// How many elements a worker adds under one grant, each with its own write.
    pub(in crate::chaos) fn adds_per_grant(self) -> u64 {
        match self {
            // A late duplicate must not undo the same holder's next write.
            Nemesis::Duplicate => 2,
            _ => 1,
        }
    }

    /// The extra bytes of each element, so that sets need space where it is short.
    pub(in crate::chaos) fn padding(self) -> usize {
        match self {
            Nemesis::DiskFull => 1_000,
            _ => 0,
        }
    }

    /// Its description, in a sentence.
    pub(in crate::chaos) fn help(self) -> String {
        let help = self.to_possible_value();
        let help = help.and_then(|value| value.get_help().map(ToString::to_string));
        help.unwrap_or_default()
    }
}
