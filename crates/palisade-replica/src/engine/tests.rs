//! The engine's own suite for log stores, on this crate's store. Nobody here wrote it.

use std::sync::{Arc, Mutex};

use openraft::StorageError;
use openraft::impls::TokioRuntime as Tokio;
use openraft::testing::log::{StoreBuilder, Suite};
use palisade_wal::testing::SimStorage;
use palisade_wal::{CreateOptions, Options, Wal};

use super::Types;
use super::machine::Replicated;
use super::storage::LogStorage;
use crate::applier::Applier;
use crate::store::{Sink, Store, Stored, Work, Writer};

/// Does the work at once.
struct Immediate(Mutex<Writer>);

impl Sink for Immediate {
    fn submit(&self, work: Work) {
        let _ = self.0.lock().unwrap().work([work]);
    }
}

struct OnSimulatedDisk;

impl StoreBuilder<Types<Tokio>, LogStorage, Replicated> for OnSimulatedDisk {
    async fn build(&self) -> Result<((), LogStorage, Replicated), StorageError<Types<Tokio>>> {
        let opened = Wal::open_or_create_on(
            Arc::new(SimStorage::new(1)),
            &CreateOptions::default(),
            &Options::small(4 << 10),
        );
        let Stored { writer, mut state } = Stored::read(opened.unwrap(), 1).unwrap();
        let compactor = writer.compactor();
        let log = std::mem::take(&mut state.log);
        let store = Store::new(log, Immediate(Mutex::new(writer)), compactor, 1);
        let applier = Arc::new(Applier::new(state, store.clone()));
        let machine = Replicated::new(applier, store.clone());
        Ok(((), LogStorage::new(store), machine))
    }
}

#[tokio::test]
async fn the_store_passes_the_suite_of_the_engine() {
    Suite::test_all(OnSimulatedDisk).await.unwrap();
}
