//! Checkpoint: a save at every n-th iteration, under a name with the iteration in it.

use super::Save;
use crate::blob::Workspace;
use crate::checkpoint::{Checkpoints, SaveReport};
use crate::db::Source;
use crate::error::{Error, Result, ResultExt};

/// Caffe2's operator Checkpoint, and Snapshot, as it was called before.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    every: u64,
    db: Pattern,
    save: Save,
}

/// A name with a place for a number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    before: String,
    after: String,
    width: usize,
    zeros: bool,
}

impl Checkpoint {
    /// Saves at iterations that `every` divides, 0 among them, to the db that `db` names: a pattern with one place for the
    /// iteration, as `printf` has it: `%d`, `%5d` or `%05d`. Fails with `InvalidInput` for an `every` of 0 and a pattern that has
    /// not one place.
    pub fn new(db: &str, every: u64, save: Save) -> Result<Self> {
        if every == 0 {
            return Err(Error::invalid("every must be at least 1 every=`0`"));
        }
        Ok(Self { every, db: Pattern::parse(db)?, save })
    }

    /// Saves the blob `iteration`, which holds one `i64`, and the blobs `inputs` if it is time to; tells what it did if so.
    pub fn run(
        &self,
        workspace: &Workspace,
        iteration: &str,
        inputs: &[&str],
        place: &Checkpoints,
    ) -> Result<Option<SaveReport>> {
        let number =
            match workspace.tensor(iteration)?.as_slice::<i64>().context(|| format!("blob `{iteration}`"))? {
                [number] => *number,
                more => {
                    return Err(Error::invalid(format!(
                        "iteration is not one number blob=`{iteration}` elements=`{}`",
                        more.len()
                    )));
                }
            };
        let number = u64::try_from(number).map_err(|_| {
            Error::invalid(format!("iteration is negative blob=`{iteration}` value=`{number}`"))
        })?;
        if !number.is_multiple_of(self.every) {
            return Ok(None);
        }
        let source = Source::new(place.prefix(), self.db.format(number));
        let all: Vec<&str> = std::iter::once(iteration).chain(inputs.iter().copied()).collect();
        self.save.run(workspace, &all, place, &source).map(Some)
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(format!(
                "pattern for a db's name needs one place for the iteration, such as %05d pattern=`{text}`"
            ))
        };
        let mut parts = vec![String::new()];
        let mut place = None;
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('%') {
            push(&mut parts, before);
            if let Some(after) = after.strip_prefix('%') {
                push(&mut parts, "%");
                rest = after;
                continue;
            }
            let (spec, after) = after.split_once('d').ok_or_else(wrong)?;
            let width = if spec.is_empty() { 0 } else { spec.parse::<u8>().map_err(|_| wrong())? };
            if place.replace((usize::from(width), spec.starts_with('0'))).is_some() {
                return Err(wrong());
            }
            parts.push(String::new());
            rest = after;
        }
        push(&mut parts, rest);
        match (place, <[String; 2]>::try_from(parts)) {
            (Some((width, zeros)), Ok([before, after])) => Ok(Self { before, after, width, zeros }),
            _ => Err(wrong()),
        }
    }

    fn format(&self, number: u64) -> String {
        let Self { before, after, width, zeros } = self;
        if *zeros {
            format!("{before}{number:0width$}{after}")
        } else {
            format!("{before}{number:width$}{after}")
        }
    }
}

fn push(parts: &mut [String], text: &str) {
    if let Some(last) = parts.last_mut() {
        last.push_str(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_printf() {
        for (pattern, number, name) in [
            ("ckpt_%05d", 42, "ckpt_00042"),
            ("%d", 0, "0"),
            ("a%%%3d.x", 7, "a%  7.x"),
            ("n.%02d", 12345, "n.12345"),
        ] {
            assert_eq!(Pattern::parse(pattern).unwrap().format(number), name);
        }
        for wrong in ["", "plain", "%d%d", "%s", "%", "%xd", "%-5d", "%999d", "100%"] {
            assert!(Pattern::parse(wrong).is_err(), "{wrong}");
        }
    }
}
