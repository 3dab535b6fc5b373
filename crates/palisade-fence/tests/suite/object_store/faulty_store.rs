//! Object stores over the one in memory: one that honours conditional puts, and some that do not. Each waits
//! before it acts, as a network does, so that the suite can freeze a writer at every request.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Honours conditional puts.
    KeepsItsWord,
    /// Creates an object even if it exists.
    IgnoresCreate,
    /// Updates an object regardless of the ETag.
    IgnoresETag,
    /// Reads first and puts then, in two steps.
    ChecksThenWrites,
    /// Carries out the put, and answers every second one with an error.
    LosesAnswers,
}

#[derive(Debug)]
pub(crate) struct FaultyStore {
    inner: InMemory,
    how: Behaviour,
    puts: AtomicU64,
}

impl FaultyStore {
    pub(crate) fn new(how: Behaviour) -> FaultyStore {
        FaultyStore {
            inner: InMemory::new(),
            how,
            puts: AtomicU64::new(0),
        }
    }

    async fn check_then_write(
        &self,
        at: &Path,
        payload: PutPayload,
        mode: PutMode,
    ) -> Result<PutResult> {
        let there = self.inner.head(at).await.ok().and_then(|meta| meta.e_tag);
        tokio::task::yield_now().await;
        let holds = match &mode {
            PutMode::Overwrite => true,
            PutMode::Create => there.is_none(),
            PutMode::Update(version) => there == version.e_tag,
        };
        if !holds {
            return Err(Error::Precondition {
                path: at.to_string(),
                source: "the condition does not hold".into(),
            });
        }
        self.inner.put(at, payload).await
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.how)
    }
}

#[async_trait::async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(
        &self,
        at: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        tokio::task::yield_now().await;
        match (self.how, &options.mode) {
            (Behaviour::IgnoresCreate, PutMode::Create)
            | (Behaviour::IgnoresETag, PutMode::Update(_)) => self.inner.put(at, payload).await,
            (Behaviour::ChecksThenWrites, _) => {
                self.check_then_write(at, payload, options.mode).await
            }
            (Behaviour::LosesAnswers, PutMode::Create | PutMode::Update(_)) => {
                let done = self.inner.put_opts(at, payload, options).await;
                if self.puts.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
                    return Err(Error::Generic {
                        store: "lying",
                        source: "timed out".into(),
                    });
                }
                done
            }
            _ => self.inner.put_opts(at, payload, options).await,
        }
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        tokio::task::yield_now().await;
        self.inner.get_opts(at, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
