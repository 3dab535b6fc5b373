//! Quotas: how much of a server one prefix, one principal or one address may use.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use crate::{Access, Principal};

/// The kinds of quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bound {
    /// Locks that are held, each counted once, however many hold it.
    Locks,
    /// Acquires that may wait and have no answer yet.
    Waiters,
    /// Open watches.
    Watchers,
    /// Open sessions.
    Sessions,
    /// Bytes of operations in flight, as the server counts them: 1 KiB each, a listing 1 KiB for each lock asked for.
    Bytes,
    /// Requests and operations of sessions in one second.
    Requests,
}

impl Bound {
    /// Every bound.
    pub const ALL: [Bound; 6] = [
        Bound::Locks,
        Bound::Waiters,
        Bound::Watchers,
        Bound::Sessions,
        Bound::Bytes,
        Bound::Requests,
    ];

    /// Its key in the access file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Bound::Locks => "locks",
            Bound::Waiters => "waiters",
            Bound::Watchers => "watchers",
            Bound::Sessions => "sessions",
            Bound::Bytes => "bytes",
            Bound::Requests => "requests_per_second",
        }
    }
}

/// A subject whose use is counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QuotaSubject {
    /// The locks whose names begin with this.
    Prefix(Box<str>),
    /// One principal.
    Principal(Principal),
    /// One address, as [`network`] sees it.
    Address(IpAddr),
}

impl fmt::Display for QuotaSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuotaSubject::Prefix(prefix) => write!(f, "the prefix {prefix:?}"),
            QuotaSubject::Principal(principal) => write!(f, "the principal {principal}"),
            QuotaSubject::Address(address) => write!(f, "the address {address}"),
        }
    }
}

/// The bounds of one quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaBounds(pub(crate) [Option<u64>; Bound::ALL.len()]);

impl QuotaBounds {
    /// The most that is allowed; `None` for no bound.
    #[must_use]
    pub const fn get(&self, bound: Bound) -> Option<u64> {
        self.0[bound as usize]
    }
}

/// All quotas of an access file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quotas {
    pub(crate) prefixes: BTreeMap<Box<str>, QuotaBounds>,
    pub(crate) principals: BTreeMap<Principal, QuotaBounds>,
    /// Of each principal without a quota of its own.
    pub(crate) each_principal: Option<QuotaBounds>,
    pub(crate) addresses: BTreeMap<IpAddr, QuotaBounds>,
    /// Of each address without a quota of its own.
    pub(crate) each_address: Option<QuotaBounds>,
}

impl Access {
    /// Whether there is any quota.
    #[must_use]
    pub fn has_quotas(&self) -> bool {
        let quotas = &self.quotas;
        quotas.each_principal.is_some()
            || quotas.each_address.is_some()
            || !(quotas.prefixes.is_empty()
                && quotas.principals.is_empty()
                && quotas.addresses.is_empty())
    }

    /// The quotas that apply to a request of this principal from this address. `within` is a lock's name, or a prefix
    /// with whose locks the request deals: the quota of a prefix applies if all of these locks are its own.
    pub fn quotas<'a>(
        &'a self,
        principal: &'a Principal,
        address: Option<IpAddr>,
        within: Option<&'a str>,
    ) -> impl Iterator<Item = (QuotaSubject, &'a QuotaBounds)> {
        let quotas = &self.quotas;
        let of_principal = quotas.principals.get(principal);
        let of_principal = of_principal
            .or(quotas.each_principal.as_ref())
            .map(|bounds| (QuotaSubject::Principal(principal.clone()), bounds));
        let of_address = address.and_then(|address| {
            let address = network(address);
            let bounds = quotas.addresses.get(&address);
            let bounds = bounds.or(quotas.each_address.as_ref());
            bounds.map(|bounds| (QuotaSubject::Address(address), bounds))
        });
        let of_prefixes = quotas.prefixes.iter().filter_map(move |(prefix, bounds)| {
            let applies = within.is_some_and(|within| within.starts_with(&**prefix));
            applies.then(|| (QuotaSubject::Prefix(prefix.clone()), bounds))
        });
        of_prefixes.chain(of_principal).chain(of_address)
    }

    /// The prefixes with a bound on locks.
    pub fn prefixes_with_locks(&self) -> impl Iterator<Item = &str> {
        let prefixes = self.quotas.prefixes.iter();
        let bounded = prefixes.filter(|(_, bounds)| bounds.get(Bound::Locks).is_some());
        bounded.map(|(prefix, _)| &**prefix)
    }

    /// The principals with a bound on locks.
    #[must_use]
    pub fn principals_with_locks(&self) -> BTreeSet<Principal> {
        let bounded = |bounds: &QuotaBounds| bounds.get(Bound::Locks).is_some();
        let quotas = &self.quotas;
        let all = self.all_principals().filter(|principal| {
            let own = quotas.principals.get(*principal);
            own.or(quotas.each_principal.as_ref()).is_some_and(bounded)
        });
        all.cloned().collect()
    }
}

/// The network that counts as one address: an IPv4 address, in either notation, or an IPv6 /64, the range of one
/// subscriber.
#[must_use]
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}
