//! The error with which a user's SQL transaction ends early through `?`, so that it is rolled back.

use std::fmt;

#[cfg(feature = "mysql")]
use palisade_fence::mysql::Fault;
#[cfg(all(feature = "postgres", not(feature = "mysql")))]
use palisade_fence::postgres::Fault;
#[cfg(not(any(feature = "mysql", feature = "postgres")))]
use palisade_fence::sqlite::Fault;
use palisade_fence::{Admitted, Checked, Reject};

#[derive(Debug)]
pub(crate) enum Refused {
    Rejected(Reject),
    Fault(Fault),
}

impl Refused {
    pub(crate) const fn rejected(&self) -> Option<&Reject> {
        match self {
            Refused::Rejected(reject) => Some(reject),
            Refused::Fault(_) => None,
        }
    }

    /// Converts the result of a job to the answer that the suite expects.
    pub(crate) fn answer<T>(done: Result<Admitted<T>, Refused>) -> Result<Checked<T>, Fault> {
        match done {
            Ok(done) => Ok(Checked::Admitted(done)),
            Err(Refused::Rejected(reject)) => Ok(Checked::Rejected(reject)),
            Err(Refused::Fault(fault)) => Err(fault),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Rejected(reject) => reject.fmt(f),
            Refused::Fault(fault) => fault.fmt(f),
        }
    }
}

impl From<Reject> for Refused {
    fn from(reject: Reject) -> Refused {
        Refused::Rejected(reject)
    }
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Refused {
        Refused::Fault(fault)
    }
}

/// The results that a job may return: a fence's answer, or its own result.
pub(crate) trait OrRefused {
    type Done;
    fn or_refused(self) -> Result<Self::Done, Refused>;
}

impl<T> OrRefused for Result<Checked<T>, Fault> {
    type Done = Admitted<T>;
    fn or_refused(self) -> Result<Admitted<T>, Refused> {
        match self? {
            Checked::Admitted(admitted) => Ok(admitted),
            Checked::Rejected(reject) => Err(reject.into()),
        }
    }
}

impl<T> OrRefused for Result<T, Refused> {
    type Done = T;
    fn or_refused(self) -> Result<T, Refused> {
        self
    }
}

#[cfg(feature = "mysql")]
impl From<mysql_async::Error> for Refused {
    fn from(error: mysql_async::Error) -> Refused {
        palisade_fence::mysql::Fault::from(error)
            .rejected()
            .map_or_else(Refused::Fault, Refused::Rejected)
    }
}
