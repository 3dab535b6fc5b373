//! The server is killed during writes. With `appendfsync always`, acknowledged writes stay; in every mode,
//! data and fence stay consistent.

use palisade_core::Token;
use palisade_fence::redis::{Resource, Script};
use palisade_testbed::Redis;
use tokio::sync::mpsc;

use super::subject::{connect, show};

const KILLS: u64 = 6;
const WRITES_BEFORE: u64 = 25;

/// Writes under ever higher tokens until the server is gone; reports each acknowledged write.
async fn write_on(url: String, first: u64, acknowledged: mpsc::UnboundedSender<u64>) {
    let mut con = connect(&url).await;
    let resource = Resource::new("r").unwrap();
    let keys = ["{r}:a", "{r}:b"];
    // Two keys in one script of the user: both or none.
    let both =
        Script::new("redis.call('SET', KEYS[1], ARGV[1]) redis.call('SET', KEYS[2], ARGV[1])");
    let both = both.unwrap();
    for number in first.. {
        let token = Token::new(number).unwrap();
        let text = number.to_string();
        let writing = resource.write(token);
        let written = writing
            .run::<_, redis::Value>(&mut con, &both, &keys, &[text.as_bytes()])
            .await;
        if let Err(error) = written {
            assert!(error.rejected().is_none(), "{error}");
            return;
        }
        let _ = acknowledged.send(number);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fence_and_data_are_consistent_after_every_kill() {
    let server = Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut next = 1;
    for _ in 0..KILLS {
        let (sender, mut acknowledged) = mpsc::unbounded_channel();
        let writer = tokio::spawn(write_on(server.url(), next, sender));
        let mut last = 0;
        while last < next + WRITES_BEFORE {
            last = acknowledged.recv().await.unwrap();
        }
        server.kill();
        while let Some(number) = acknowledged.recv().await {
            last = number;
        }
        writer.await.unwrap();
        server.start_again();
        let mut con = connect(&server.url()).await;
        let data: (u64, u64) = redis::cmd("MGET")
            .arg(&["{r}:a", "{r}:b"])
            .query_async(&mut con)
            .await
            .unwrap();
        let state = show(&mut con, "r").await.unwrap().unwrap();
        let highest = state.highest().unwrap().get();
        assert_eq!(data, (highest, highest), "half a write");
        assert!(
            highest >= last,
            "{last} was acknowledged, but the fence has {highest}"
        );
        assert!(highest <= last + 1, "only one write was in flight");
        next = highest + 1;
    }
}
