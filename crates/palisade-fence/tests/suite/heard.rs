//! A reporter that keeps what it hears.

use std::sync::Mutex;

use palisade_fence::{Late, Reporter};

#[derive(Debug, Default)]
pub(crate) struct Heard(Mutex<Vec<String>>);

impl Heard {
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Reporter for Heard {
    fn late(&self, write: &Late<'_>) {
        let Late {
            lock,
            token,
            resource,
            highest,
            operation,
            ..
        } = write;
        let lock = lock.map_or("-", |lock| lock.as_str());
        let heard = format!("{lock}: {operation} at {resource}, {token} < {highest}");
        self.0.lock().unwrap().push(heard);
    }
}
