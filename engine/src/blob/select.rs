//! Which blobs of a checkpoint are wanted.

use globset::{GlobBuilder, GlobMatcher};

use super::workspace::no_such_blob;
use crate::error::{Error, Result};

/// A choice of blobs by name.
#[derive(Clone, Debug, Default)]
pub enum Selection {
    /// All of them.
    #[default]
    All,
    /// Exactly these names.
    Names(Vec<String>),
    /// What any of the globs matches: `*` (any run of characters, `/` and `.` too), `?`, `[a-z]`, `{a,b}`. A blob whose name is
    /// the glob letter by letter matches too.
    Globs(Vec<Glob>),
}

/// One pattern of a [`Selection`].
#[derive(Clone, Debug)]
pub struct Glob {
    text: String,
    matcher: Option<GlobMatcher>,
}

impl Glob {
    fn matches(&self, name: &str) -> bool {
        self.text == name || self.matcher.as_ref().is_some_and(|glob| glob.is_match(name))
    }
}

impl Selection {
    /// The blobs of these names.
    pub fn names<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        Self::Names(names.into_iter().map(Into::into).collect())
    }

    /// The blobs that match any of these globs. Text that is no glob (such as `a[`) only matches itself.
    pub fn globs<S: Into<String>>(globs: impl IntoIterator<Item = S>) -> Self {
        let globs = globs.into_iter().map(|text| {
            let text = text.into();
            let glob = GlobBuilder::new(&text).literal_separator(false).build();
            let matcher = glob.ok().map(|glob| glob.compile_matcher());
            Glob { text, matcher }
        });
        Self::Globs(globs.collect())
    }

    /// The positions in `names` (sorted, without repeats) of the wanted ones, ascending. A name or a glob that matches
    /// nothing is `NotFound`.
    pub fn resolve(&self, names: &[&str]) -> Result<Vec<usize>> {
        let found = self.find(names);
        match (found.missing.first(), self) {
            (None, _) => Ok(found.positions),
            (Some(name), Self::Globs(_)) => Err(Error::not_found(format!("no blob matches glob=`{name}`"))),
            (Some(name), _) => Err(no_such_blob(name)),
        }
    }

    /// As [`resolve`](Self::resolve), for one part of several that together must hold all: what matches nothing here is told.
    pub fn find(&self, names: &[&str]) -> Found {
        let mut found = Found::default();
        match self {
            Self::All => found.positions.extend(0..names.len()),
            Self::Names(wanted) => {
                for name in wanted {
                    match names.binary_search(&name.as_str()) {
                        Ok(position) => found.positions.push(position),
                        Err(_) => found.missing.push(name.clone()),
                    }
                }
            }
            Self::Globs(globs) => {
                for glob in globs {
                    let before = found.positions.len();
                    let matching = names.iter().enumerate().filter(|(_, name)| glob.matches(name));
                    found.positions.extend(matching.map(|(position, _)| position));
                    if found.positions.len() == before {
                        found.missing.push(glob.text.clone());
                    }
                }
            }
        }
        found.positions.sort_unstable();
        found.positions.dedup();
        found
    }
}

/// What a [`Selection`] finds among names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The positions of the wanted names, ascending.
    pub positions: Vec<usize>,
    /// The wanted names, or the globs, that match nothing.
    pub missing: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const NAMES: [&str; 5] = ["a.b/w", "a.w", "b", "w[0]", "w[1]"];

    #[test]
    fn globs_cross_separators() {
        let found = Selection::globs(["*w"]).resolve(&NAMES).unwrap();
        assert_eq!(found, [0, 1]);
    }

    #[test]
    fn a_name_with_brackets_matches_itself() {
        assert_eq!(Selection::globs(["w[0]"]).resolve(&NAMES).unwrap(), [3]);
        assert_eq!(Selection::globs(["w[*"]).resolve(&NAMES).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn overlapping_ones_count_once() {
        let found = Selection::globs(["*", "b"]).resolve(&NAMES).unwrap();
        assert_eq!(found, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn one_that_matches_nothing_is_named() {
        for selection in [Selection::globs(["b", "zz*"]), Selection::names(["b", "zz"])] {
            let error = selection.resolve(&NAMES).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.to_string().contains("`zz"), "{error}");
        }
    }
}
