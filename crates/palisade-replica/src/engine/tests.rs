//! The engine's own suite for log stores, on this crate's store. Nobody here wrote it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use openraft::StorageError;
use openraft::impls::TokioRuntime as Tokio;
use openraft::testing::log::{StoreBuilder, Suite};
use palisade_wal::testing::SimStorage;
use palisade_wal::{CreateOptions, Options, Wal};

use super::Types;
use super::machine::Replicated;
use super::network::Gate;
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

#[test]
fn a_leader_that_hears_no_quorum_pauses_and_sends_in_turns() {
    let millis = Duration::from_millis;
    let at = |heard: Option<u64>, probe: Option<u64>| {
        let gate = Gate::new(millis(340), probe.map(millis));
        gate.watch(move || heard.map(millis));
        gate.is_closed()
    };
    for (heard, closed) in [
        (0, false),
        (339, false),
        (340, true),
        (1_039, true),
        (1_040, false),
        (1_739, false),
        (1_740, true),
    ] {
        assert_eq!(at(Some(heard), Some(700)), closed, "{heard} ms");
        assert!(!at(Some(heard), None), "without pauses");
    }
    assert!(!at(None, Some(700)), "a new leader has heard nobody yet");
    assert!(!Gate::new(millis(340), Some(millis(700))).is_closed());
}
