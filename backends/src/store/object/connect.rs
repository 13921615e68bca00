//! Clients of the providers, set up from the environment.

use std::sync::Arc;
use std::time::Duration;

use ckpt_engine::Result;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};

use super::error::map;

/// Requests that may be repeated are, so often and for so long.
const MAX_RETRIES: usize = 5;
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// For one request, part and all: 8 MiB on a slow line with 16 under way. `AWS_TIMEOUT` and its like change it.
const REQUEST_TIMEOUT: &str = "120 seconds";

/// Who keeps the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provider {
    /// Amazon S3 and what speaks its protocol.
    #[cfg(feature = "s3")]
    S3,
    /// Google Cloud Storage.
    #[cfg(feature = "gs")]
    Gs,
    /// Azure Blob Storage.
    #[cfg(feature = "az")]
    Az,
}

impl Provider {
    /// The one whose backend has this name.
    pub(crate) fn of(db_type: &str) -> Option<Self> {
        let known = [
            #[cfg(feature = "s3")]
            Self::S3,
            #[cfg(feature = "gs")]
            Self::Gs,
            #[cfg(feature = "az")]
            Self::Az,
        ];
        known.into_iter().find(|provider| provider.db_type() == db_type)
    }

    /// The backend's name, which is the scheme of its URLs too.
    pub(crate) fn db_type(self) -> &'static str {
        match self {
            #[cfg(feature = "s3")]
            Self::S3 => "s3",
            #[cfg(feature = "gs")]
            Self::Gs => "gs",
            #[cfg(feature = "az")]
            Self::Az => "az",
        }
    }

    /// Whether an upload that was aborted cannot be completed any more. On Azure there is nothing to abort: blocks that were
    /// not committed are dropped after a week.
    pub(super) fn aborts(self) -> bool {
        match self {
            #[cfg(feature = "s3")]
            Self::S3 => true,
            #[cfg(feature = "gs")]
            Self::Gs => true,
            #[cfg(feature = "az")]
            Self::Az => false,
        }
    }
}

/// A client for one bucket (for Azure: container). Sends nothing yet.
pub(super) fn connect(provider: Provider, bucket: &str) -> Result<Arc<dyn ObjectStore>> {
    let built: object_store::Result<Arc<dyn ObjectStore>> = match provider {
        #[cfg(feature = "s3")]
        Provider::S3 => s3(bucket),
        #[cfg(feature = "gs")]
        Provider::Gs => gs(bucket),
        #[cfg(feature = "az")]
        Provider::Az => az(bucket),
    };
    built.map_err(|error| {
        let error = map("cannot set up the client: check its environment variables", bucket, error);
        // Nothing was sent, so it cannot be the network.
        error.with_kind(ckpt_engine::ErrorKind::InvalidInput)
    })
}

fn retry() -> RetryConfig {
    let backoff = BackoffConfig { max_backoff: MAX_BACKOFF, ..BackoffConfig::default() };
    RetryConfig { backoff, max_retries: MAX_RETRIES, retry_timeout: RETRY_TIMEOUT }
}

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some()
}

#[cfg(feature = "s3")]
fn s3(bucket: &str) -> object_store::Result<Arc<dyn ObjectStore>> {
    use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry());
    if !is_set("AWS_TIMEOUT") {
        builder = builder.with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), REQUEST_TIMEOUT);
    }
    // One object is deleted at a time, and not every server knows the request for many.
    Ok(Arc::new(builder.with_disable_bulk_delete(true).build()?))
}

#[cfg(feature = "gs")]
fn gs(bucket: &str) -> object_store::Result<Arc<dyn ObjectStore>> {
    use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
    let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_retry(retry());
    if !is_set("GOOGLE_TIMEOUT") {
        builder = builder.with_config(GoogleConfigKey::Client(ClientConfigKey::Timeout), REQUEST_TIMEOUT);
    }
    Ok(Arc::new(builder.build()?))
}

#[cfg(feature = "az")]
fn az(container: &str) -> object_store::Result<Arc<dyn ObjectStore>> {
    use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
    let mut builder = MicrosoftAzureBuilder::from_env().with_container_name(container).with_retry(retry());
    if !is_set("AZURE_TIMEOUT") {
        builder = builder.with_config(AzureConfigKey::Client(ClientConfigKey::Timeout), REQUEST_TIMEOUT);
    }
    Ok(Arc::new(builder.build()?))
}
