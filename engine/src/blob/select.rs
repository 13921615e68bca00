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
        let mut found = match self {
            Self::All => (0..names.len()).collect(),
            Self::Names(wanted) => {
                let at = |name: &String| names.binary_search(&name.as_str()).map_err(|_| no_such_blob(name));
                wanted.iter().map(at).collect::<Result<Vec<_>>>()?
            }
            Self::Globs(globs) => {
                let mut found = Vec::new();
                for glob in globs {
                    let before = found.len();
                    let matching = names.iter().enumerate().filter(|(_, name)| glob.matches(name));
                    found.extend(matching.map(|(index, _)| index));
                    if found.len() == before {
                        return Err(Error::not_found(format!("no blob matches glob=`{}`", glob.text)));
                    }
                }
                found
            }
        };
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
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
