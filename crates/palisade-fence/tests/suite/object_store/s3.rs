//! Properties that only a real S3 server can show.

use std::sync::Arc;

use object_store::aws::AmazonS3Builder;
use object_store::{
    Attribute, Attributes, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion,
};
use palisade_fence::Rule;
use palisade_testbed::{Moto, Proxy};

use super::{Objects, TEXTBOOK, held, rounds};

/// Creates a separate bucket.
pub(crate) async fn bucket(name: &str) -> Arc<dyn ObjectStore> {
    let server = Moto::shared();
    let request = format!(
        "PUT /{name} HTTP/1.1\r\nHost: {0}\r\nContent-Length: 0\r\nConnection: close\r\n\
         Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request\r\n\r\n",
        server.address()
    );
    let mut stream = tokio::net::TcpStream::connect(server.address())
        .await
        .unwrap();
    let mut answer = String::new();
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes())
        .await
        .unwrap();
    tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer)
        .await
        .unwrap();
    assert!(answer.contains(" 200 "), "{answer}");
    client(&server.url(), name)
}

fn client(url: &str, bucket: &str) -> Arc<dyn ObjectStore> {
    // Another test of this process may have installed it before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let store = AmazonS3Builder::new()
        .with_endpoint(url)
        .with_allow_http(true)
        .with_bucket_name(bucket)
        .with_region("us-east-1")
        .with_access_key_id("test")
        .with_secret_access_key("test")
        .build();
    Arc::new(store.unwrap())
}

async fn lost_in_flight(name: &str, rule: Rule) -> u64 {
    let relay = Proxy::to(Moto::shared().address());
    let direct = Objects::unprobed(bucket(name).await, rule);
    let url = format!("http://{}", relay.addr());
    let relayed = Objects::unprobed(client(&url, name), rule);
    let (old, new) = (
        relayed.store.resource("counter").unwrap(),
        direct.store.resource("counter").unwrap(),
    );
    held::lost(&old, &new, &relay, held::Sent::OnANewConnection, rounds()).await
}

#[tokio::test]
async fn a_claim_loses_no_write_held_in_flight() {
    assert_eq!(lost_in_flight("claim", Rule::CLAIM).await, 0);
}

#[tokio::test]
async fn the_textbook_fence_loses_every_write_held_in_flight() {
    let lost = lost_in_flight("textbook", TEXTBOOK).await;
    assert_eq!(lost, rounds(), "the control arm lost too little");
}

/// The reason why the fence is in the body of an object: a claim that changed only metadata would leave the
/// ETag as it is, and the late put on that ETag would succeed.
#[tokio::test]
async fn an_etag_does_not_see_metadata() {
    let objects = bucket("metadata").await;
    let at = object_store::path::Path::from("object");
    let mut versions: Vec<UpdateVersion> = Vec::new();
    for token in ["1", "2"] {
        let key = Attribute::Metadata("fencing-token".into());
        let options = PutOptions {
            attributes: Attributes::from_iter([(key, token)]),
            ..PutOptions::default()
        };
        let done = objects.put_opts(&at, "the same".into(), options).await;
        versions.push(done.unwrap().into());
    }
    assert_eq!(versions[0].e_tag, versions[1].e_tag);
    let late = PutMode::Update(versions[0].clone());
    objects
        .put_opts(&at, "late".into(), late.into())
        .await
        .expect("admitted: the ETag of token 1 is still there after the claim of token 2");
    let holds = objects.get(&at).await.unwrap().bytes().await.unwrap();
    assert_eq!(holds.as_ref(), b"late");
}
