//! One bucket: single requests on its objects.

use std::sync::Arc;

use bytes::Bytes;
use ckpt_engine::{Error, ErrorKind, Result};
use object_store::path::Path;
use object_store::{
    Attribute, AttributeValue, Attributes, Error as StoreError, GetOptions, ObjectStore, ObjectStoreExt,
    PutMode, PutOptions, PutPayload,
};

use super::error::{is_refusal, map};
use super::io::Io;
use super::place::parse_name;

/// The metadata that says who wrote an object. A name that all providers take.
const TOKEN: Attribute = Attribute::Metadata(std::borrow::Cow::Borrowed("ckptwrite"));

/// A bucket and the way to it.
#[derive(Debug)]
pub(super) struct Bucket {
    store: Arc<dyn ObjectStore>,
    io: Arc<Io>,
    url: String,
    aborts: bool,
}

impl Bucket {
    /// `aborts`: whether an upload that was aborted cannot be completed any more.
    pub(super) fn new(store: Arc<dyn ObjectStore>, io: Arc<Io>, url: String, aborts: bool) -> Self {
        Self { store, io, url, aborts }
    }

    pub(super) fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    pub(super) fn io(&self) -> &Io {
        &self.io
    }

    pub(super) fn aborts(&self) -> bool {
        self.aborts
    }

    /// An object's name for people.
    pub(super) fn label(&self, object: &Path) -> String {
        format!("{}/{object}", self.url)
    }

    /// The error for a request on an object that failed.
    pub(super) fn failed(&self, what: &str, object: &Path, error: StoreError) -> Error {
        map(what, &self.label(object), error)
    }

    /// Whether there is an object: one HEAD. That access is denied is an error.
    pub(super) fn exists(&self, object: &Path) -> Result<bool> {
        match self.io.wait(self.store.head(object))? {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.failed("cannot look for object", object, error)),
        }
    }

    /// The names of the objects directly in a folder.
    pub(super) fn list(&self, folder: &Path) -> Result<Vec<String>> {
        let listed = self.io.wait(self.store.list_with_delimiter(Some(folder)))?;
        let listed = listed.map_err(|error| self.failed("cannot list objects", folder, error))?;
        let names = listed.objects.iter().filter_map(|object| parse_name(&object.location));
        Ok(names.map(str::to_owned).collect())
    }

    /// Removes an object. `Ok` if it is absent.
    pub(super) fn delete(&self, object: &Path) -> Result<()> {
        match self.io.wait(self.store.delete(object))? {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) if is_refusal(&error) => Err(self.failed("cannot delete object", object, error)),
            Err(error) => Err(self.failed("cannot delete object", object, error).may_have_happened()),
        }
    }

    /// A whole object of at most `max_len` bytes, or `None`.
    pub(super) fn get(&self, object: &Path, max_len: u64) -> Result<Option<Bytes>> {
        let request = async {
            let found = self.store.get(object).await?;
            if found.meta.size > max_len {
                return Ok(Err(found.meta.size));
            }
            found.bytes().await.map(Ok)
        };
        match self.io.wait(request)? {
            Ok(Ok(bytes)) => Ok(Some(bytes)),
            Ok(Err(len)) => Err(Error::corrupt(format!(
                "object is longer than {max_len} bytes length=`{len}` object=`{}`",
                self.label(object)
            ))),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed("cannot read object", object, error)),
        }
    }

    /// Writes an object in one request: all of it or nothing.
    pub(super) fn put(&self, object: &Path, payload: PutPayload, mode: PutMode) -> Result<()> {
        let token = Token::random()?;
        self.io.wait(self.put_as(&token, object, payload, mode))?
    }

    /// The same, under a token.
    pub(super) async fn put_as(
        &self,
        token: &Token,
        object: &Path,
        payload: PutPayload,
        mode: PutMode,
    ) -> Result<()> {
        let creates = mode == PutMode::Create;
        let options = PutOptions { mode, attributes: token.attributes(), ..PutOptions::default() };
        let Err(error) = self.store.put_opts(object, payload, options).await else {
            return Ok(());
        };
        // What is not found is the bucket.
        if is_refusal(&error) || matches!(error, StoreError::NotFound { .. }) {
            return Err(self.failed("cannot write object", object, error));
        }
        // A request that was repeated after a lost answer may find its own first try.
        let ours = self.is_ours(token, object).await;
        if matches!(ours, Ok(true)) {
            return Ok(());
        }
        let exists = matches!(error, StoreError::AlreadyExists { .. });
        let error = self.failed("cannot write object", object, error);
        match (exists, ours) {
            (true, Ok(false)) if creates => Err(error),
            // Two writers at once, of which the store let one through.
            (true, Ok(false)) => Err(error.with_kind(ErrorKind::Conflict)),
            _ => Err(error.may_have_happened()),
        }
    }

    /// Whether the object carries the token.
    pub(super) async fn is_ours(&self, token: &Token, object: &Path) -> Result<bool, StoreError> {
        let head = GetOptions { head: true, ..GetOptions::default() };
        match self.store.get_opts(object, head).await {
            Ok(found) => Ok(found.attributes.get(&TOKEN) == Some(&token.0)),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Who writes an object: random, so that nobody else has the same.
#[derive(Debug)]
pub(super) struct Token(AttributeValue);

impl Token {
    pub(super) fn random() -> Result<Self> {
        let mut random = [0; 16];
        getrandom::fill(&mut random)
            .map_err(|error| Error::internal("the system gives no random bytes").with_source(error))?;
        Ok(Self(format!("{:032x}", u128::from_le_bytes(random)).into()))
    }

    /// The metadata of an object that is written under it.
    pub(super) fn attributes(&self) -> Attributes {
        [(TOKEN, self.0.clone())].into_iter().collect()
    }
}
