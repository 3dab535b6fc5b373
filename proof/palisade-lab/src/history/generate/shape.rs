//! The size of a history.

/// The size of a history.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The number of clients.
    pub clients: usize,
    /// The number of locks.
    pub locks: usize,
    /// The number of calls.
    pub operations: usize,
    /// Whether some requests are for permits, for several locks, or in mode update.
    pub kinds: bool,
}
