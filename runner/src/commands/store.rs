//! What a STORE on the command line names, and which checkpoints of it are meant.

use std::fmt;
use std::str::FromStr;

use ckpt_engine::checkpoint::naming::{DbName, parse_db_name};
use ckpt_engine::checkpoint::{Checkpoint, Checkpoints};
use ckpt_engine::db::{Locality, Source};
use ckpt_engine::{Error, ErrorKind, Result};

use super::Failure;

/// A STORE: `<db_type>:<prefix>` or a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreArg {
    /// The backend's name, as given.
    pub db_type: String,
    /// Where, in the backend's own syntax.
    pub prefix: String,
}

impl FromStr for StoreArg {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let help = "give DB_TYPE:PREFIX, such as files:./ckpts, or a URL, such as s3://bucket/run1";
        let (scheme, rest) = text.split_once(':').ok_or(help)?;
        let (db_type, prefix) = match rest.strip_prefix("//") {
            // `files://x` would be a path from the root that nobody means.
            Some(path) if scheme.eq_ignore_ascii_case("file") => {
                // An empty host or this one; then the path from the root.
                let path = path.strip_prefix("localhost").unwrap_or(path);
                if !path.starts_with('/') {
                    return Err(
                        "a file URL names a path from the root, such as file:///data/ckpts".to_owned()
                    );
                }
                ("files", percent_decode(path)?)
            }
            Some(path) if ["s3", "gs", "az"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) => {
                (scheme, path.to_owned())
            }
            _ => (scheme, rest.to_owned()),
        };
        if db_type.is_empty() || prefix.is_empty() {
            return Err(help.to_owned());
        }
        Ok(Self { db_type: db_type.to_owned(), prefix })
    }
}

impl fmt::Display for StoreArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.db_type, self.prefix)
    }
}

fn percent_decode(path: &str) -> std::result::Result<String, String> {
    let wrong = || format!("a % in a file URL begins two hexadecimal digits: {path}");
    let mut bytes = Vec::with_capacity(path.len());
    let mut parts = path.split('%');
    bytes.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        let (digits, rest) = part.split_at_checked(2).ok_or_else(wrong)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong())?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).map_err(|_| format!("a file URL is not UTF-8: {path}"))
}

/// The value of `--epoch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochArg {
    /// The newest complete one.
    Latest,
    /// This one.
    Number(u64),
}

impl FromStr for EpochArg {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text == "latest" {
            return Ok(Self::Latest);
        }
        text.parse().map(Self::Number).map_err(|_| "give a number, or latest".to_owned())
    }
}

/// A STORE to read.
pub(super) struct Store {
    /// The place.
    pub(super) place: Checkpoints,
    /// The db, if the STORE is one.
    db: Option<Source>,
    name: String,
}

/// One checkpoint that is meant.
pub(super) struct Chosen {
    /// Its epoch and node; of a db that is a STORE by itself, what its manifest says.
    pub(super) name: DbName,
    /// Where it is.
    pub(super) source: Source,
}

impl Store {
    pub(super) fn new(place: Checkpoints, arg: &StoreArg, chosen: bool) -> Self {
        let db = if chosen { None } else { as_db(&place) };
        let place = match &db {
            Some(source) => Checkpoints::new(place.driver().clone(), source.prefix())
                .with_options(place.options().clone()),
            None => place,
        };
        Self { place, db, name: arg.to_string() }
    }

    /// As it was given.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the STORE is one db.
    pub(super) fn is_db(&self) -> bool {
        self.db.is_some()
    }

    /// The one checkpoint that is meant, open.
    pub(super) fn open_one(
        &self,
        epoch: Option<EpochArg>,
        node: Option<&str>,
    ) -> Result<Checkpoint, Failure> {
        match &self.db {
            Some(source) => Ok(self.place.open_source(source.clone())?),
            None => Ok(self.place.open_source(self.choose_one(epoch, node)?.source)?),
        }
    }

    /// Where the checkpoints are that are meant. Opens none of them, so that a damaged one is among them.
    pub(super) fn sources(&self, epochs: &[EpochArg], node: Option<&str>) -> Result<Vec<Source>, Failure> {
        match &self.db {
            Some(source) => Ok(vec![source.clone()]),
            None => {
                let chosen = self.choose_many(epochs, node)?;
                Ok(chosen.into_iter().map(|chosen| chosen.source).collect())
            }
        }
    }

    /// The one checkpoint that is meant. Several nodes without a choice are wrong usage.
    pub(super) fn choose_one(&self, epoch: Option<EpochArg>, node: Option<&str>) -> Result<Chosen, Failure> {
        let mut chosen = self.choose_many(&[epoch.unwrap_or(EpochArg::Latest)], node)?;
        if chosen.len() > 1 {
            let nodes: Vec<_> = chosen.iter().map(|chosen| chosen.name.node.as_str()).collect();
            return Err(Failure::usage(format!(
                "the epoch has several nodes; choose one with --node: {} store=`{}`",
                nodes.join(", "),
                self.name
            )));
        }
        chosen.pop().ok_or_else(|| Error::internal("nothing was chosen").into())
    }

    /// The checkpoints that are meant, by epoch, then node: all if nothing is said. None at all is `NotFound`.
    pub(super) fn choose_many(
        &self,
        epochs: &[EpochArg],
        node: Option<&str>,
    ) -> Result<Vec<Chosen>, Failure> {
        if let Some(source) = &self.db {
            let checkpoint = self.place.open_source(source.clone())?;
            let manifest = checkpoint.manifest();
            let name = DbName { epoch: manifest.epoch, node: manifest.node.clone() };
            return Ok(vec![Chosen { name, source: source.clone() }]);
        }
        let epochs = epochs.iter().map(|epoch| self.number(*epoch)).collect::<Result<Vec<_>, _>>()?;
        let mut dbs = self.place.list()?;
        let known: Vec<u64> = dbs.iter().map(|db| db.epoch).collect();
        dbs.retain(|db| epochs.is_empty() || epochs.contains(&db.epoch));
        if let Some(missing) = epochs.iter().find(|epoch| !known.contains(epoch)) {
            return Err(Error::not_found(format!(
                "the store has no such epoch epoch=`{missing}` store=`{}`",
                self.name
            ))
            .into());
        }
        if let Some(node) = node {
            let nodes: Vec<String> = dbs.iter().map(|db| db.node.clone()).collect();
            dbs.retain(|db| db.node == node);
            if dbs.is_empty() && !nodes.is_empty() {
                return Err(Error::not_found(format!(
                    "there is no checkpoint of this node; there are: {} node=`{node}` store=`{}`",
                    unique(nodes).join(", "),
                    self.name
                ))
                .into());
            }
        }
        if dbs.is_empty() {
            return Err(
                Error::not_found(format!("the store holds no checkpoint store=`{}`", self.name)).into()
            );
        }
        let choose = |name: DbName| Ok(Chosen { source: self.place.source(&name.node, name.epoch)?, name });
        dbs.into_iter().map(choose).collect()
    }

    fn number(&self, epoch: EpochArg) -> Result<u64, Failure> {
        let latest = match epoch {
            EpochArg::Number(number) => return Ok(number),
            EpochArg::Latest => self.place.latest_complete()?,
        };
        if let Some(latest) = latest {
            return Ok(latest);
        }
        let incomplete = unique(self.place.list()?.iter().map(|db| db.epoch.to_string()).collect());
        let message = if incomplete.is_empty() {
            "the store holds no checkpoint".to_owned()
        } else {
            format!("no epoch is complete; name one of these with --epoch: {}", incomplete.join(", "))
        };
        Err(Error::not_found(format!("{message} store=`{}`", self.name)).into())
    }
}

/// Sorted names, each once, in the order they came.
fn unique(mut names: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

/// The db that the place's whole prefix names, if it does. Behind a network it is only looked for where the name is one of a db.
fn as_db(place: &Checkpoints) -> Option<Source> {
    let prefix = place.prefix().trim_end_matches('/');
    let is_remote = place.driver().capabilities().locality == Locality::Remote;
    let (parent, name) = match prefix.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some(split) => split,
        None if is_remote => return None,
        None => (".", prefix),
    };
    if is_remote && parse_db_name(name).is_none() {
        return None;
    }
    let source = Source::new(parent, name);
    // Whatever keeps us from telling comes up again when the place is listed.
    matches!(place.driver().exists(&source), Ok(true)).then_some(source)
}

/// Whether an error says that there is nothing.
pub(super) fn is_absent(failure: &Failure) -> bool {
    matches!(failure, Failure::Failed(error) if error.kind() == ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, String) {
        let store: StoreArg = text.parse().unwrap();
        (store.db_type, store.prefix)
    }

    #[test]
    fn stores_and_urls() {
        let cases = [
            ("files:./ckpts", "files", "./ckpts"),
            ("RocksDB:/data/run1", "RocksDB", "/data/run1"),
            ("lmdb:a:b", "lmdb", "a:b"),
            ("files://data", "files", "//data"),
            ("s3://bucket/run1", "s3", "bucket/run1"),
            ("s3:bucket/run1", "s3", "bucket/run1"),
            ("gs://bucket/a/b", "gs", "bucket/a/b"),
            ("az://container", "az", "container"),
            ("file:///data/run%201", "files", "/data/run 1"),
            ("file://localhost/data", "files", "/data"),
        ];
        for (text, db_type, prefix) in cases {
            assert_eq!(parsed(text), (db_type.to_owned(), prefix.to_owned()), "{text}");
        }
        for wrong in
            ["", "files", "files:", ":x", "./ckpts", "s3://", "file://host/x", "file:///%zz", "file:///a%2"]
        {
            assert!(wrong.parse::<StoreArg>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn epochs() {
        assert_eq!("latest".parse(), Ok(EpochArg::Latest));
        assert_eq!("12".parse(), Ok(EpochArg::Number(12)));
        for wrong in ["", "-1", "Latest", "1.0", "x"] {
            assert!(wrong.parse::<EpochArg>().is_err(), "{wrong}");
        }
    }
}
