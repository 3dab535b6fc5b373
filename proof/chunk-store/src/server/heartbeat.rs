//! Heartbeats: a chunk server reports its replicas to the master, and gets the verdict about each (rule
//! K5).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::ChunkServer;
use crate::http::call;
use crate::wire::{Heartbeat, Judged, ProblemCode, Standing};

/// Reports as long as the process runs. A server that was retired ends.
pub(super) async fn run(server: Arc<ChunkServer>) {
    let config = &server.config;
    let mut reachable = true;
    let mut alarmed = BTreeSet::new();
    let mut turns = tokio::time::interval(config.heartbeat);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        let heartbeat = Heartbeat {
            server: config.server.clone(),
            address: server.address,
            replicas: server.slots.reported(),
        };
        let answer: Result<Judged, _> =
            call(config.master, "/v1/heartbeat", &heartbeat, config.timeout).await;
        match answer {
            Ok(judged) => {
                reachable = true;
                for (chunk, standing) in judged.replicas {
                    if standing == Standing::Ahead && alarmed.insert(chunk.clone()) {
                        eprintln!(
                            "ALARM: the master knows no version of {chunk} as high as the one here"
                        );
                    }
                }
            }
            Err(problem) if problem.code == ProblemCode::Retired => {
                eprintln!("{problem}");
                std::process::exit(1);
            }
            // The first time only: a master that restarts is no news every second.
            Err(problem) if reachable => {
                eprintln!("{problem}");
                reachable = false;
            }
            Err(_) => {}
        }
    }
}
