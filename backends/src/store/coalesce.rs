//! Which ranges to fetch in one request. Pure.

use std::ops::Range;

/// A gap shorter than this is the padding before a chunk that shares a record, and is no waste: each may have one, and all of them
/// must not use up what may be wasted between records.
const PADDING: u64 = 64;

/// How far ranges are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Joining {
    /// No request is made longer than this by joining.
    pub(crate) max_len: u64,
    /// Bytes between two ranges that are fetched for nothing to save a request: at most so many in one gap.
    pub(crate) max_gap: u64,
    /// And at most so many in all; padding within a record is not counted.
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
            && gap <= joining.max_gap
            && let waste = if gap < PADDING { 0 } else { gap }
            && waste <= waste_left
            && range.end.saturating_sub(open.start) <= joining.max_len
        {
            waste_left -= waste;
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

    const JOINING: Joining = Joining { max_len: 1000, max_gap: 100, max_waste: 170 };

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
        assert_eq!(groups(&[0..400, 400..800, 800..1000, 1000..1200]), [3, 1]);
    }

    #[test]
    fn a_range_longer_than_a_request_is_fetched_in_one() {
        assert_eq!(groups(&[0..2000, 2000..2010]), [1, 1]);
    }

    #[test]
    fn gaps_are_bounded_singly_and_in_all() {
        assert_eq!(groups(&[0..10, 110..120]), [2]);
        assert_eq!(groups(&[0..10, 111..120]), [1, 1]);
        // 100 of 170 are spent on the first gap.
        assert_eq!(groups(&[0..10, 110..120, 190..200, 270..280]), [3, 1]);
        assert_eq!(groups(&[0..10, 110..120, 191..200, 270..280]), [2, 2]);
    }

    /// A load of a hundred thousand small blobs read half of them one by one, once the padding of the others had used up the waste.
    #[test]
    fn padding_within_a_record_is_no_waste() {
        let chunks: Vec<_> = (0..90).map(|number| number * 67..number * 67 + 4).collect();
        assert_eq!(groups(&chunks), [15; 6]);
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
