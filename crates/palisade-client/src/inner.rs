//! The state shared by the clones of a client and its requests.

use std::fmt;
use std::sync::Arc;

use crate::identity::ClientIds;
use crate::keeper::Keeper;

pub(crate) struct Inner {
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) identity: ClientIds,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.keeper.core().service.authority();
        f.debug_struct("Client")
            .field("authority", authority)
            .finish_non_exhaustive()
    }
}
