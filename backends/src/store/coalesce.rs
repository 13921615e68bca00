//! Which ranges to fetch in one request. Pure.

use std::ops::Range;

/// How far ranges are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Joining {
    /// No request is made longer than this by joining.
    pub(crate) max_len: u64,
    /// Bytes between two ranges that are fetched for nothing to save a request: at most so many in one gap.
    pub(crate) max_gap: u64,
    /// And at most so many in all.
    pub(crate) max_waste: u64,
}

/// Groups `ranges`, which must be in the order of their starts, into runs that are fetched together: the numbers of the ranges
/// of each. Ranges that overlap are not joined.
pub(crate) fn coalesce(ranges: &[Range<u64>], joining: Joining) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut open: Option<Range<u64>> = None;
    let mut waste_left = joining.max_waste;
    for (number, range) in ranges.iter().enumerate() {
        if let (Some(open), Some(group)) = (&mut open, groups.last_mut())
            && let Some(gap) = range.start.checked_sub(open.end)
            && gap <= joining.max_gap.min(waste_left)
            && range.end.saturating_sub(open.start) <= joining.max_len
        {
            waste_left -= gap;
            open.end = range.end;
            group.end = number + 1;
            continue;
        }
        groups.push(number..number + 1);
        open = Some(range.clone());
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOINING: Joining = Joining { max_len: 100, max_gap: 10, max_waste: 15 };

    /// How many ranges are fetched together, run by run.
    fn groups(ranges: &[Range<u64>]) -> Vec<usize> {
        let groups = coalesce(ranges, JOINING);
        let mut next = 0;
        for group in &groups {
            assert_eq!(group.start, next);
            next = group.end;
        }
        assert_eq!(next, ranges.len());
        groups.iter().map(Range::len).collect()
    }

    #[test]
    fn neighbours_are_joined_up_to_the_length() {
        assert!(groups(&[]).is_empty());
        assert_eq!(groups(&[0..10, 1000..1010]), [1, 1]);
        assert_eq!(groups(&[0..40, 40..80, 80..100, 100..120]), [3, 1]);
    }

    #[test]
    fn a_range_longer_than_a_request_is_fetched_in_one() {
        assert_eq!(groups(&[0..1000, 1000..1010]), [1, 1]);
    }

    #[test]
    fn gaps_are_bounded_singly_and_in_all() {
        assert_eq!(groups(&[0..10, 20..30]), [2]);
        assert_eq!(groups(&[0..10, 21..30]), [1, 1]);
        // 10 of 15 are spent on the first gap.
        assert_eq!(groups(&[0..10, 20..30, 36..40, 45..50]), [2, 2]);
        assert_eq!(groups(&[0..10, 20..30, 36..40, 46..50]), [2, 1, 1]);
    }

    #[test]
    fn overlapping_and_equal_ranges_stay_apart() {
        assert_eq!(groups(&[0..10, 5..15, 15..20]), [1, 2]);
        assert_eq!(groups(&[0..10, 0..10]), [1, 1]);
        assert_eq!(groups(&[5..5, 5..5, 5..8]), [3]);
    }

    #[test]
    fn the_end_of_numbers_does_not_overflow() {
        assert_eq!(groups(&[0..u64::MAX, u64::MAX..u64::MAX]), [1, 1]);
    }
}
