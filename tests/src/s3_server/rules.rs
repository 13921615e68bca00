//! What S3 promises and `s3s-fs` leaves out: only making a bucket makes one; a condition and what follows from it are one
//! step; reads may be conditional; a suffix may be longer than the object; completing an upload again gives the same answer;
//! an upload that is gone is not a matter of permission.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use s3s::dto::*;
use s3s::{S3, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use s3s_fs::FileSystem;
use tokio::sync::RwLock;

/// Keys share locks; that two of them wait for each other does no harm.
const LOCKS: usize = 64;

/// The file system with the missing rules.
pub(super) struct Rules {
    root: PathBuf,
    files: FileSystem,
    locks: [RwLock<()>; LOCKS],
    completed: Mutex<HashMap<String, ETag>>,
}

impl Rules {
    pub(super) fn new(root: &Path) -> Result<Self, s3s_fs::Error> {
        let files = FileSystem::new(root)?;
        let root = root.to_owned();
        Ok(Self { root, files, locks: std::array::from_fn(|_| RwLock::new(())), completed: Mutex::default() })
    }

    fn lock(&self, bucket: &str, key: &str) -> &RwLock<()> {
        let mut hasher = DefaultHasher::new();
        (bucket, key).hash(&mut hasher);
        &self.locks[(hasher.finish() % LOCKS as u64) as usize]
    }

    /// Objects go into buckets that are there, and make none.
    fn check_bucket(&self, bucket: &str) -> S3Result<()> {
        if self.root.join(bucket).is_dir() { Ok(()) } else { Err(s3_error!(NoSuchBucket)) }
    }

    fn completed(&self, upload_id: &str) -> Option<ETag> {
        self.completed.lock().unwrap_or_else(PoisonError::into_inner).get(upload_id).cloned()
    }
}

fn head_of(request: &S3Request<GetObjectInput>) -> S3Request<HeadObjectInput> {
    let input = HeadObjectInput {
        bucket: request.input.bucket.clone(),
        key: request.input.key.clone(),
        ..HeadObjectInput::default()
    };
    S3Request {
        input,
        method: request.method.clone(),
        uri: request.uri.clone(),
        headers: request.headers.clone(),
        extensions: request.extensions.clone(),
        credentials: request.credentials.clone(),
        region: request.region.clone(),
        service: request.service.clone(),
        trailing_headers: None,
    }
}

#[async_trait::async_trait]
impl S3 for Rules {
    async fn get_object(
        &self,
        mut request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let lock = self.lock(&request.input.bucket, &request.input.key);
        // Held until the file is open: from then on the reader has one version of it.
        let _same_version = lock.read().await;
        let head = self.files.head_object(head_of(&request)).await?.output;
        if let Some(ETagCondition::ETag(wanted)) = &request.input.if_match
            && !head.e_tag.as_ref().is_some_and(|e_tag| e_tag.strong_cmp(wanted))
        {
            return Err(s3_error!(PreconditionFailed, "ETag does not match"));
        }
        if let Some(Range::Suffix { length }) = &mut request.input.range {
            let object = head.content_length.unwrap_or_default();
            *length = (*length).min(u64::try_from(object).unwrap_or_default());
        }
        self.files.get_object(request).await
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let _same_version = self.lock(&request.input.bucket, &request.input.key).read().await;
        self.files.head_object(request).await
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        self.check_bucket(&request.input.bucket)?;
        let _alone = self.lock(&request.input.bucket, &request.input.key).write().await;
        self.files.put_object(request).await
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let _alone = self.lock(&request.input.bucket, &request.input.key).write().await;
        self.files.delete_object(request).await
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let (bucket, key) = (request.input.bucket.clone(), request.input.key.clone());
        let upload_id = request.input.upload_id.clone();
        let _alone = self.lock(&bucket, &key).write().await;
        if let Some(e_tag) = self.completed(&upload_id) {
            return Ok(S3Response::new(CompleteMultipartUploadOutput {
                bucket: Some(bucket),
                key: Some(key),
                e_tag: Some(e_tag),
                ..CompleteMultipartUploadOutput::default()
            }));
        }
        let mut response = self.files.complete_multipart_upload(request).await?;
        // The whole answer comes in a future that is ready.
        if let Some(ready) = response.output.future.take() {
            response.output = ready.await?;
        }
        if let Some(e_tag) = response.output.e_tag.clone() {
            self.completed.lock().unwrap_or_else(PoisonError::into_inner).insert(upload_id, e_tag);
        }
        Ok(response)
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.files.abort_multipart_upload(request).await.map_err(upload_is_gone)
    }

    async fn upload_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        self.files.upload_part(request).await.map_err(upload_is_gone)
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        self.check_bucket(&request.input.bucket)?;
        self.files.create_multipart_upload(request).await
    }

    async fn list_parts(&self, request: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        self.files.list_parts(request).await
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        self.files.delete_objects(request).await
    }

    async fn list_objects(
        &self,
        request: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        self.files.list_objects(request).await
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        self.files.list_objects_v2(request).await
    }

    async fn create_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        self.files.create_bucket(request).await
    }

    async fn head_bucket(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        self.files.head_bucket(request).await
    }

    async fn list_buckets(
        &self,
        request: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        self.files.list_buckets(request).await
    }
}

/// The server knows an upload by its owner's key, and takes one that it does not know for someone else's.
fn upload_is_gone(error: s3s::S3Error) -> s3s::S3Error {
    if *error.code() == S3ErrorCode::AccessDenied { s3_error!(NoSuchUpload) } else { error }
}
