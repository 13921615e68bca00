//! What a job does when a checkpoint cannot be saved.

use std::time::Duration;

use ckpt_engine::{Error, ErrorKind};

/// What to do about a save that fails. Caffe2 swallows every error with a warning, so that a job can end well without a single
/// checkpoint; here that has to be asked for, and is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavePolicy {
    /// How often to try again after a failure that may pass ([`ErrorKind::Unavailable`]).
    pub retries: u32,
    /// How long to wait before the first retry; it doubles each time.
    pub backoff: Duration,
    /// What to do then, and at once after a failure that does not pass.
    pub then: OnSaveFailure,
}

/// What to do when a save has failed for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnSaveFailure {
    /// The job fails.
    Fail,
    /// The job warns and trains on, up to so many failed epochs in a row; one more fails the job.
    WarnUpTo(u32),
}

impl Default for SavePolicy {
    /// Two retries after 1 and 2 seconds, then fail.
    fn default() -> Self {
        Self { retries: 2, backoff: Duration::from_secs(1), then: OnSaveFailure::Fail }
    }
}

impl SavePolicy {
    /// How long to wait before trying again after failure number `failures` (from 1), or `None` to give up.
    pub(super) fn retry_after(&self, failures: u32, error: &Error) -> Option<Duration> {
        let may_pass = error.kind() == ErrorKind::Unavailable;
        (may_pass && failures <= self.retries)
            .then(|| self.backoff.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1))))
    }

    /// Whether the job goes on after `in_a_row` epochs that could not be saved.
    pub(super) fn goes_on(&self, in_a_row: u32) -> bool {
        match self.then {
            OnSaveFailure::Fail => false,
            OnSaveFailure::WarnUpTo(limit) => in_a_row <= limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_pass_is_retried_and_ever_later() {
        let policy = SavePolicy::default();
        let busy = Error::new(ErrorKind::Unavailable, "no answer");
        let seconds = |failures| policy.retry_after(failures, &busy).map(|wait| wait.as_secs());
        assert_eq!([seconds(1), seconds(2), seconds(3)], [Some(1), Some(2), None]);
        assert_eq!(policy.retry_after(1, &Error::new(ErrorKind::Full, "no space")), None);
    }

    #[test]
    fn warnings_are_bounded() {
        let policy = SavePolicy { then: OnSaveFailure::WarnUpTo(2), ..SavePolicy::default() };
        assert!(policy.goes_on(1) && policy.goes_on(2) && !policy.goes_on(3));
        assert!(!SavePolicy::default().goes_on(1));
    }
}
