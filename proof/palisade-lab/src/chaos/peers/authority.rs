//! The authorities by name, and the properties of each.

use clap::ValueEnum;
use serde::Serialize;

use crate::chaos::arm::Arm;
use crate::chaos::kind::LockKind;
use crate::chaos::nemesis::fault::Nemesis;

/// The authority that grants the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Authority {
    /// `palisade serve`
    Palisade,
    /// etcd, through its adapter: the token is a revision
    Etcd,
    /// ZooKeeper, through its adapter: the token is a zxid
    Zookeeper,
    /// A table in PostgreSQL, through its adapter
    Postgres,
    /// One Redis, naively: INCR for a token, then SET NX
    RedisIncr,
    /// Redlock on five Redis primaries: no token at all
    Redlock,
    /// Broken on purpose: grants every request at once, with rising tokens
    Broken,
    /// Broken on purpose: like `broken`, but one token repeats
    Repeating,
    /// Broken on purpose: single servers, `--nodes` of them, that pass for one cluster
    Split,
}

impl Authority {
    /// The default lease for this authority.
    pub(in crate::chaos) fn ttl_ms(self) -> u64 {
        match self {
            // The shortest lease that etcd grants.
            Authority::Etcd | Authority::Zookeeper => 2_000,
            Authority::Redlock => 1_000,
            _ => 300,
        }
    }

    /// The requested arms that make sense with it.
    ///
    /// # Errors
    /// The arms that do not.
    pub(in crate::chaos) fn arms(self, asked: &[Arm]) -> Result<Vec<Arm>, String> {
        match (self, asked) {
            (Authority::Redlock, [] | [Arm::Unfenced]) => Ok(vec![Arm::Unfenced]),
            (Authority::Redlock, _) => {
                Err("Redlock has no fencing token, so it works with --arm unfenced only".to_owned())
            }
            (_, []) => Ok(Arm::ALL.to_vec()),
            (_, asked) => Ok(asked.to_vec()),
        }
    }

    /// The nemeses for it.
    ///
    /// # Errors
    /// The requested nemeses that do not apply to it.
    pub(in crate::chaos) fn nemeses(
        self,
        asked: &[Nemesis],
        cluster: bool,
    ) -> Result<Vec<Nemesis>, String> {
        let own: Vec<Nemesis> = match self {
            Authority::Palisade => Nemesis::value_variants()
                .iter()
                .copied()
                .filter(|nemesis| {
                    if cluster {
                        nemesis.fits_cluster()
                    } else {
                        *nemesis != Nemesis::OneClock && !nemesis.needs_cluster()
                    }
                })
                .collect(),
            Authority::Etcd | Authority::Zookeeper | Authority::Postgres => {
                vec![Nemesis::Clients, Nemesis::Holder]
            }
            Authority::RedisIncr => vec![Nemesis::Clients, Nemesis::Holder],
            Authority::Redlock => vec![Nemesis::None, Nemesis::OneClock],
            Authority::Broken | Authority::Repeating | Authority::Split => vec![Nemesis::None],
        };
        if let Some(wrong) = asked.iter().find(|nemesis| !own.contains(nemesis)) {
            let own: Vec<String> = own.iter().map(|nemesis| nemesis.word()).collect();
            let (wrong, own) = (wrong.word(), own.join(", "));
            return Err(format!(
                "--nemesis {wrong} does not apply to this authority; it supports {own}"
            ));
        }
        Ok(match asked {
            [] => own,
            asked => asked.to_vec(),
        })
    }

    /// Whether it has these kinds of locks.
    ///
    /// # Errors
    /// The kind that it lacks.
    pub(in crate::chaos) fn kinds(self, asked: &[LockKind]) -> Result<(), String> {
        match asked.iter().find(|kind| **kind != LockKind::Exclusive) {
            Some(kind) if self != Authority::Palisade => Err(format!(
                "--kind {} does not apply to this authority; it has exclusive locks",
                kind.word()
            )),
            _ => Ok(()),
        }
    }

    /// Whether, without failures, it never makes a fence reject the lock's holder.
    pub(in crate::chaos) fn is_orderly(self) -> bool {
        !matches!(
            self,
            Authority::RedisIncr | Authority::Broken | Authority::Repeating | Authority::Split
        )
    }
}
