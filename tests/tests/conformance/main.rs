//! Every case on every db_type. A case that does not apply to one is listed as ignored, with the reason.

mod damage;
mod driver;
mod s3;
mod support;
mod verbs;

use ckpt_tests::stores::{self, DB_TYPES, Store};
use libtest_mimic::{Arguments, Completion, Trial};

/// One case: what must hold of a store at a fresh place.
pub struct Case {
    name: &'static str,
    run: fn(&Store),
    applies: Applies,
}

/// Where a case applies.
enum Applies {
    /// Everywhere but on these db_types, each with the reason.
    Except(&'static [(&'static str, &'static str)]),
    /// On this db_type only; the reason.
    Only(&'static str, &'static str),
}

/// Lists functions as cases: `name`, or `name but not on "memory": "reason"`.
macro_rules! cases {
    (only on $db_type:literal: $reason:literal; $($name:ident;)*) => {
        &[$($crate::Case {
            name: stringify!($name),
            run: $name,
            applies: $crate::Applies::Only($db_type, $reason),
        }),*]
    };
    ($($name:ident $(but not on $($($db_type:literal)|+: $reason:literal),+)?;)*) => {
        &[$($crate::Case {
            name: stringify!($name),
            run: $name,
            applies: $crate::Applies::Except(&[$($($(($db_type, $reason),)+)+)?]),
        }),*]
    };
}
pub(crate) use cases;

impl Case {
    fn trial(&'static self, db_type: &'static str) -> Trial {
        let reason = match self.applies {
            Applies::Except(others) => {
                others.iter().find(|(other, _)| *other == db_type).map(|(_, reason)| *reason)
            }
            Applies::Only(only, reason) => (only != db_type).then_some(reason),
        };
        Trial::ignorable_test(format!("{db_type}::{}", self.name), move || {
            if let Some(reason) = reason {
                return Ok(Completion::ignored_with(reason));
            }
            (self.run)(&Store::fresh(db_type));
            Ok(Completion::Completed)
        })
    }
}

fn main() {
    if let Some(place) = s3::asked_to_probe() {
        s3::probe(&place);
        return;
    }
    stores::init();
    let mut arguments = Arguments::from_args();
    // Most of the time goes into waiting for disks.
    arguments.test_threads.get_or_insert(4);
    let cases = [driver::CASES, verbs::CASES, damage::CASES, s3::CASES];
    let cases = cases.into_iter().flatten();
    let trials = cases.flat_map(|case| DB_TYPES.map(|db_type| case.trial(db_type))).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    conclusion.exit();
}
