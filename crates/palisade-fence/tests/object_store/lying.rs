//! Object stores over the one in memory: one that keeps its word, and some that break it. Each waits before
//! it acts, as a network does, so that the suite can freeze a writer at every request.

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
pub(crate) enum How {
    /// Keeps its word.
    KeepsItsWord,
    /// Creates what is there already.
    IgnoresCreate,
    /// Updates whatever the ETag says.
    IgnoresETag,
    /// Looks first and puts then, in two steps.
    ChecksThenWrites,
    /// Carries out, and every second time answers with an error.
    LosesAnswers,
}

#[derive(Debug)]
pub(crate) struct Lying {
    inner: InMemory,
    how: How,
    puts: AtomicU64,
}

impl Lying {
    pub(crate) fn new(how: How) -> Lying {
        Lying {
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

impl fmt::Display for Lying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.how)
    }
}

#[async_trait::async_trait]
impl ObjectStore for Lying {
    async fn put_opts(
        &self,
        at: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        tokio::task::yield_now().await;
        match (self.how, &options.mode) {
            (How::IgnoresCreate, PutMode::Create) | (How::IgnoresETag, PutMode::Update(_)) => {
                self.inner.put(at, payload).await
            }
            (How::ChecksThenWrites, _) => self.check_then_write(at, payload, options.mode).await,
            (How::LosesAnswers, PutMode::Create | PutMode::Update(_)) => {
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
