//! Event counts: a simulation in which nothing goes wrong proves nothing.

use std::fmt;

use palisade_core::Ending;

use super::fact::{ChangeKind, Fact, LockChange};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident: $label:literal,)*) => {
        /// Event counts over one run or many.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counts {
            /// Adds the counts of another run.
            pub(crate) fn merge(&mut self, other: &Counts) {
                $(self.$name += other.$name;)*
            }
        }

        impl fmt::Display for Counts {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let all = [$((self.$name, $label)),*];
                for (place, (count, label)) in all.into_iter().enumerate() {
                    let comma = if place == 0 { "" } else { ", " };
                    write!(f, "{comma}{count} {label}")?;
                }
                Ok(())
            }
        }
    };
}

counts! {
    /// Facts of any kind.
    facts: "facts",
    /// Grants on stable storage.
    grants: "grants",
    /// Shared ones among them.
    shared: "shared",
    /// Grants of permits.
    permits: "of permits",
    /// Sets granted, some not yet on stable storage.
    sets: "sets",
    /// Sets that had to wait.
    waiting_sets: "sets that waited",
    /// Ends of a grant that left the lock closed for a time.
    closed: "locks closed for a time",
    /// Grants that expired.
    expired: "expired",
    /// Grants that an operator revoked.
    revoked: "revoked",
    /// Grants that a client took over from its previous process.
    superseded: "superseded",
    /// Single callers that left their queues.
    callers_gone: "callers that left",
    /// Places reserved for callers that were gone.
    orphaned: "places reserved",
    /// Grants that reached nobody.
    unclaimed: "grants that reached nobody",
    /// Renewals in the log.
    renewals: "renewals",
    /// Elements added and acknowledged.
    added: "elements added",
    /// Operations that a fence rejected.
    rejected: "operations rejected",
    /// Messages lost.
    lost: "messages lost",
    /// Times a client believed in a lock that was granted to another (not counted with tame clocks).
    overlaps: "double beliefs",
    /// Restarts of the authority.
    restarts: "restarts of the authority",
    /// Restarts from a backup.
    restores: "restores",
    /// Directories refused because of a flipped bit.
    damaged: "damaged directories refused",
    /// Times the authority noticed an absence of its own.
    stalls: "stalls",
    /// Rounds without room on the disk.
    full: "rounds on a full disk",
    /// Snapshots of the authority.
    snapshots: "snapshots",
    /// Restarts of the resource.
    resource_restarts: "restarts of the resource",
    /// Restarts of the resource from a backup.
    resource_restores: "restores of the resource",
    /// Fences lost.
    fences_lost: "fences lost",
}

impl Counts {
    pub(crate) fn see(&mut self, fact: &Fact) {
        self.facts += 1;
        if let Fact::Published(LockChange {
            closed: Some(_), ..
        }) = fact
        {
            self.closed += 1;
        }
        let counter = match fact {
            Fact::Published(turn) => match turn.what {
                ChangeKind::Granted(_) => {
                    self.shared += u64::from(turn.phase.is_some());
                    self.permits += u64::from(turn.slots != 0);
                    &mut self.grants
                }
                ChangeKind::Ended(Ending::Expired) => &mut self.expired,
                ChangeKind::Ended(Ending::Revoked) => &mut self.revoked,
                ChangeKind::Ended(Ending::Superseded) => &mut self.superseded,
                ChangeKind::Ended(Ending::Released) => return,
            },
            Fact::Decided { granted: 2.., .. } => &mut self.sets,
            Fact::Queued { locks, .. } if locks.are_several() => &mut self.waiting_sets,
            Fact::Gone { single: true, .. } => &mut self.callers_gone,
            Fact::Orphaned { .. } => &mut self.orphaned,
            Fact::Unclaimed { .. } => &mut self.unclaimed,
            Fact::Renewed { .. } => &mut self.renewals,
            Fact::Added { .. } => &mut self.added,
            Fact::Rejected { .. } => &mut self.rejected,
            Fact::Sent { delay_us: None, .. } => &mut self.lost,
            Fact::Believers { .. } => &mut self.overlaps,
            Fact::Recovered { restored: true, .. } => &mut self.restores,
            Fact::Recovered { .. } => &mut self.restarts,
            Fact::Damaged => &mut self.damaged,
            Fact::Stalled { .. } => &mut self.stalls,
            Fact::DiskFull => &mut self.full,
            Fact::Snapshot => &mut self.snapshots,
            Fact::ResourceRecovered {
                resource: 0,
                restored: true,
                ..
            } => &mut self.resource_restores,
            Fact::ResourceRecovered { resource: 0, .. } => &mut self.resource_restarts,
            Fact::FenceLost { .. } => &mut self.fences_lost,
            _ => return,
        };
        *counter += 1;
    }
}
