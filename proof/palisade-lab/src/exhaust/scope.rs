//! The size of a search.

/// The size of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Scope {
    /// The number of contenders, at most 4.
    pub clients: u8,
    /// How many of them only read, with shared grants; with any, writers may become readers.
    pub readers: u8,
    /// How many of the readers ask for mode update, and may upgrade after they have read.
    pub updates: u8,
    /// The number of slots, at most 2; 0 for a plain lock.
    pub slots: u8,
    /// How many locks a client asks for at once, at most 2.
    pub locks: u8,
    /// The number of wishes for the lock, over all clients, at most 4 each.
    pub grants: u8,
    /// The number of writes under one grant, at most 2.
    pub writes: u8,
    /// The number of repeated requests, over all clients.
    pub resends: u8,
    /// The number of crashes, of any part.
    pub crashes: u8,
}

impl Scope {
    /// Whether a contender only reads: the last ones do.
    pub(super) const fn is_reader(self, client: u8) -> bool {
        client + self.readers >= self.clients
    }

    /// Whether a reader asks for mode update: the last ones do.
    pub(super) const fn is_updater(self, client: u8) -> bool {
        client + self.updates >= self.clients
    }

    /// Whether leases of this contender last longer than others, so that they end one after another.
    pub(super) const fn lasts_longer(self, client: u8) -> bool {
        self.is_reader(client) || self.slots > 0
    }

    /// Two contenders: takes some seconds, where a third one would take minutes.
    pub const DEFAULT: Scope = Scope {
        clients: 2,
        readers: 0,
        updates: 0,
        slots: 0,
        locks: 1,
        grants: 2,
        writes: 2,
        resends: 2,
        crashes: 1,
    };
}

/// A, B, C …
pub(super) fn name(client: u8) -> String {
    char::from(b'A' + client).to_string()
}
