//! What a STORE on the command line names, and which checkpoints of it are meant.

use ckpt_engine::checkpoint::naming::{DbName, parse_db_name};
use ckpt_engine::checkpoint::{Checkpoint, Checkpoints};
use ckpt_engine::db::{Locality, Source};
use ckpt_engine::{Error, ErrorKind, Result};

use super::Failure;
use crate::cli::{EpochArg, StoreArg};

/// A STORE to read.
pub(super) struct Store {
    /// The place.
    pub(super) place: Checkpoints,
    /// The db, if the STORE is one.
    db: Option<Source>,
    /// Why it may be none: what to say where a place holds nothing.
    suspect: Option<Error>,
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
        let (db, suspect) = match as_db(&place) {
            Ok(Some(_)) if chosen => (
                None,
                Some(Error::invalid(
                    "it is one checkpoint; leave out --epoch and --node, or name its folder",
                )),
            ),
            Ok(db) => (db, None),
            Err(error) => (None, Some(error)),
        };
        let place = match &db {
            Some(source) => Checkpoints::new(place.driver().clone(), source.prefix())
                .with_options(place.options().clone()),
            None => place,
        };
        Self { place, db, suspect, name: arg.to_string() }
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
        self.choose(epochs, node).map_err(|failure| match (failure, &self.suspect) {
            // Where there is nothing, the path may have been meant as a db.
            (Failure::Failed(error), Some(suspect))
                if self.place.list().map_or(true, |dbs| dbs.is_empty()) =>
            {
                let message = format!("{error}; as a db itself: {suspect}");
                Error::new(error.kind(), message).into()
            }
            (failure, _) => failure,
        })
    }

    /// What is there that is no checkpoint of a node and an epoch by its name, in words; nothing if there is nothing.
    pub(super) fn other_dbs(&self) -> String {
        let mut names = self.place.driver().list(self.place.prefix()).unwrap_or_default();
        names.retain(|name| parse_db_name(name).is_none());
        names.sort_unstable();
        match names.first() {
            None => String::new(),
            Some(first) => format!(
                "there are {} dbs that are not named NODE.EPOCH; name one as the STORE, such as {}/{first}\n",
                names.len(),
                self.name.trim_end_matches('/')
            ),
        }
    }

    fn choose(&self, epochs: &[EpochArg], node: Option<&str>) -> Result<Vec<Chosen>, Failure> {
        if let Some(source) = &self.db {
            let checkpoint = self.place.open_source(source.clone())?;
            let about = checkpoint.about();
            let name = DbName { epoch: about.epoch, node: about.node.clone() };
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
            let others = self.other_dbs();
            let others = if others.is_empty() { others } else { format!("; {}", others.trim_end()) };
            return Err(Error::not_found(format!(
                "the store holds no checkpoint{others} store=`{}`",
                self.name
            ))
            .into());
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
/// An error says that something is there of which the driver cannot tell that it is one.
fn as_db(place: &Checkpoints) -> Result<Option<Source>> {
    let prefix = place.prefix().trim_end_matches('/');
    let is_remote = place.driver().capabilities().locality == Locality::Remote;
    let (parent, name) = match prefix.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some(split) => split,
        None if is_remote => return Ok(None),
        None => (".", prefix),
    };
    if is_remote && parse_db_name(name).is_none() {
        return Ok(None);
    }
    if name.is_empty() || name.starts_with('.') {
        return Ok(None);
    }
    let source = Source::new(parent, name);
    Ok(place.driver().exists(&source)?.then_some(source))
}

/// Whether an error says that there is nothing.
pub(super) fn is_absent(failure: &Failure) -> bool {
    matches!(failure, Failure::Failed(error) if error.kind() == ErrorKind::NotFound)
}
