//! The manifest, with and without a fence.

use std::sync::Arc;

use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt};
use palisade_client::Token;
use palisade_fence::object_store::{Resource, Store};
use palisade_fence::{Edit, Fence, Pass, Rule, Write, enter};

use crate::{Failure, Mode};

const KEY: &str = "/manifest.json";

/// The location of the manifest.
#[derive(Clone)]
pub struct Location {
    /// The S3 endpoint, for example `http://127.0.0.1:9000`.
    pub s3: String,
    /// The bucket, which must exist.
    pub bucket: String,
    /// The folder in the bucket.
    pub folder: String,
    /// `AWS_ACCESS_KEY_ID`.
    pub key_id: String,
    /// `AWS_SECRET_ACCESS_KEY`.
    pub secret: String,
}

/// A list of entries that is swapped as a whole.
#[derive(Debug)]
pub enum Manifest {
    /// A plain object.
    Unfenced(Arc<dyn ObjectStore>, Path),
    /// A key of a fenced resource.
    Fenced(Resource),
}

impl Manifest {
    /// Opens the manifest.
    ///
    /// # Errors
    /// Errors of the store. A store that does not honour conditional puts is refused.
    pub async fn open(location: &Location, mode: Mode) -> Result<Manifest, Failure> {
        // The store's client asks the process which cryptography it uses. The first choice stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let store = AmazonS3Builder::new()
            .with_region("us-east-1")
            .with_access_key_id(&location.key_id)
            .with_secret_access_key(&location.secret)
            .with_endpoint(&location.s3)
            .with_allow_http(location.s3.starts_with("http:"))
            .with_bucket_name(&location.bucket)
            .build()?;
        let (store, folder): (Arc<dyn ObjectStore>, _) =
            (Arc::new(store), Path::from(location.folder.as_str()));
        Ok(match mode {
            Mode::Unfenced => Manifest::Unfenced(store, folder.join("manifest.json")),
            Mode::Fenced => {
                let store = Store::open(store, folder, Rule::CLAIM).await?;
                Manifest::Fenced(store.resource("manifest")?)
            }
        })
    }

    /// Reads the manifest as the new primary: from the claim on, no older primary can swap the list read
    /// here.
    ///
    /// # Errors
    /// A refusal, if a newer primary has already claimed it; errors of the store.
    pub async fn take_over(&self, token: Token) -> Result<Vec<String>, Failure> {
        let Manifest::Fenced(manifest) = self else {
            return self.observe().await;
        };
        let claimed = enter(manifest, Pass::new(token)).await?; // first: raise the fence
        entries(claimed.read(KEY).await?.value)
    }

    /// Replaces the previous list with this one.
    ///
    /// # Errors
    /// As [`Manifest::take_over`].
    pub async fn swap(&self, token: Token, entries: &[String]) -> Result<(), Failure> {
        let bytes = serde_json::to_vec(entries)?;
        match self {
            Manifest::Unfenced(store, at) => {
                store.put(at, bytes.into()).await?;
            }
            Manifest::Fenced(manifest) => {
                let write = Write::new(KEY, Edit::Put(&bytes));
                manifest.write(Pass::new(token), write).await?;
            }
        }
        Ok(())
    }

    /// Reads the manifest as an observer.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn observe(&self) -> Result<Vec<String>, Failure> {
        match self {
            Manifest::Unfenced(store, at) => match store.get(at).await {
                Ok(got) => entries(Some(got.bytes().await?.to_vec())),
                Err(Error::NotFound { .. }) => Ok(Vec::new()),
                Err(error) => Err(error.into()),
            },
            Manifest::Fenced(manifest) => entries(manifest.observe(KEY).await?),
        }
    }
}

fn entries(bytes: Option<Vec<u8>>) -> Result<Vec<String>, Failure> {
    match bytes {
        None => Ok(Vec::new()),
        Some(bytes) => Ok(serde_json::from_slice(&bytes)?),
    }
}
