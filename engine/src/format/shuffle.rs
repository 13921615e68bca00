//! Byte planes: the bytes of equal rank of all elements side by side.
//!
//! Neighbours in a tensor of weights have signs and exponents in common and nothing else, and those sit in the same byte of every
//! element. Side by side they are what an entropy coder can shorten; left between mantissas they are not.

use std::array;

use crate::blob::DType;
use crate::error::{Error, Result};

/// The bytes of an element that is worth shuffling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// Two bytes.
    Two,
    /// Four bytes.
    Four,
    /// Eight bytes.
    Eight,
}

/// So many elements are shuffled at a time: they and their planes stay in the first level of cache.
const BLOCK: usize = 1024;

impl Width {
    /// The width of a dtype's numbers (of a complex one, of its parts), or `None` if they are single bytes or of no fixed width.
    pub fn of(dtype: DType) -> Option<Self> {
        let parts = if matches!(dtype, DType::Complex64 | DType::Complex128) { 2 } else { 1 };
        match dtype.size()? / parts {
            2 => Some(Self::Two),
            4 => Some(Self::Four),
            8 => Some(Self::Eight),
            _ => None,
        }
    }

    /// In bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::Two => 2,
            Self::Four => 4,
            Self::Eight => 8,
        }
    }
}

/// Writes the planes of `raw` to `planes`, which is as long: the first bytes of all elements, the second bytes, and so on, then as they
/// are the bytes of `raw` that are less than an element.
pub fn shuffle(width: Width, raw: &[u8], planes: &mut [u8]) -> Result<()> {
    let count = raw.len() / width.bytes();
    let (planes, rest) = planes.split_at_mut_checked(count * width.bytes()).ok_or_else(lengths_differ)?;
    let tail = match width {
        Width::Two => {
            let (elements, tail) = raw.as_chunks::<2>();
            let [mut a, mut b] = cut_mut(planes, count);
            for block in elements.chunks(BLOCK) {
                plane_of_2(take(&mut a, block.len()), block, 0);
                plane_of_2(take(&mut b, block.len()), block, 8);
            }
            tail
        }
        Width::Four => {
            let (elements, tail) = raw.as_chunks::<4>();
            let mut planes: [_; 4] = cut_mut(planes, count);
            for block in elements.chunks(BLOCK) {
                planes_of_4(&mut planes, block);
            }
            tail
        }
        Width::Eight => {
            let (elements, tail) = raw.as_chunks::<8>();
            let (low, high) = planes.split_at_mut_checked(count * 4).ok_or_else(lengths_differ)?;
            let (mut low, mut high): ([_; 4], [_; 4]) = (cut_mut(low, count), cut_mut(high, count));
            // In two steps of what vector units of 16 bytes do well; from eight bytes to one is not.
            let mut halves = [[[0; 4]; BLOCK]; 2];
            for block in elements.chunks(BLOCK) {
                let [lows, highs] = &mut halves;
                for ((element, low), high) in block.iter().zip(&mut *lows).zip(&mut *highs) {
                    let word = u64::from_le_bytes(*element);
                    *low = ((word & 0xffff_ffff) as u32).to_le_bytes();
                    *high = ((word >> 32) as u32).to_le_bytes();
                }
                planes_of_4(&mut low, lows.get(..block.len()).unwrap_or_default());
                planes_of_4(&mut high, highs.get(..block.len()).unwrap_or_default());
            }
            tail
        }
    };
    if rest.len() != tail.len() {
        return Err(lengths_differ());
    }
    rest.copy_from_slice(tail);
    Ok(())
}

/// The inverse of [`shuffle`].
pub fn unshuffle(width: Width, planes: &[u8], raw: &mut [u8]) -> Result<()> {
    let count = raw.len() / width.bytes();
    let (planes, rest) = planes.split_at_checked(count * width.bytes()).ok_or_else(lengths_differ)?;
    let tail = match width {
        Width::Two => {
            let (elements, tail) = raw.as_chunks_mut::<2>();
            let [a, b] = cut(planes, count);
            for ((element, &a), &b) in elements.iter_mut().zip(a).zip(b) {
                *element = [a, b];
            }
            tail
        }
        Width::Four => {
            let (elements, tail) = raw.as_chunks_mut::<4>();
            join_4(elements, cut(planes, count));
            tail
        }
        Width::Eight => {
            let (elements, tail) = raw.as_chunks_mut::<8>();
            let (low, high) = planes.split_at_checked(count * 4).ok_or_else(lengths_differ)?;
            let (mut low, mut high): ([_; 4], [_; 4]) = (cut(low, count), cut(high, count));
            let mut halves = [[[0; 4]; BLOCK]; 2];
            for block in elements.chunks_mut(BLOCK) {
                let [lows, highs] = &mut halves;
                join_4(lows, array::from_fn(|plane| next(&mut low, plane, block.len())));
                join_4(highs, array::from_fn(|plane| next(&mut high, plane, block.len())));
                for ((element, low), high) in block.iter_mut().zip(&*lows).zip(&*highs) {
                    let (low, high) = (u32::from_le_bytes(*low), u32::from_le_bytes(*high));
                    *element = (u64::from(low) | u64::from(high) << 32).to_le_bytes();
                }
            }
            tail
        }
    };
    if rest.len() != tail.len() {
        return Err(lengths_differ());
    }
    tail.copy_from_slice(rest);
    Ok(())
}

fn lengths_differ() -> Error {
    Error::internal("shuffled bytes are not as long as the raw ones")
}

/// The planes, one after the other, of so many elements.
fn cut_mut<const N: usize>(bytes: &mut [u8], count: usize) -> [&mut [u8]; N] {
    let mut planes = bytes.chunks_exact_mut(count.max(1));
    array::from_fn(|_| planes.next().unwrap_or_default())
}

fn cut<const N: usize>(bytes: &[u8], count: usize) -> [&[u8]; N] {
    let mut planes = bytes.chunks_exact(count.max(1));
    array::from_fn(|_| planes.next().unwrap_or_default())
}

/// The next `len` bytes of a plane.
fn take<'a>(plane: &mut &'a mut [u8], len: usize) -> &'a mut [u8] {
    plane.split_off_mut(..len).unwrap_or_default()
}

fn next<'a>(planes: &mut [&'a [u8]; 4], plane: usize, len: usize) -> &'a [u8] {
    planes.get_mut(plane).and_then(|plane| plane.split_off(..len)).unwrap_or_default()
}

// One plane at a time, by a shift and a cast: the form that is made into vector instructions without any target feature.

fn plane_of_2(plane: &mut [u8], elements: &[[u8; 2]], shift: u32) {
    for (byte, element) in plane.iter_mut().zip(elements) {
        *byte = ((u16::from_le_bytes(*element) >> shift) & 0xff) as u8;
    }
}

fn planes_of_4(planes: &mut [&mut [u8]; 4], elements: &[[u8; 4]]) {
    for (plane, shift) in planes.iter_mut().zip([0, 8, 16, 24]) {
        for (byte, element) in take(plane, elements.len()).iter_mut().zip(elements) {
            *byte = ((u32::from_le_bytes(*element) >> shift) & 0xff) as u8;
        }
    }
}

fn join_4(elements: &mut [[u8; 4]], [a, b, c, d]: [&[u8]; 4]) {
    for ((((element, &a), &b), &c), &d) in elements.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        *element = (u32::from(a) | u32::from(b) << 8 | u32::from(c) << 16 | u32::from(d) << 24).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::time::Instant;

    use super::*;

    const WIDTHS: [Width; 3] = [Width::Two, Width::Four, Width::Eight];

    #[test]
    fn planes_follow_each_other_and_the_tail_is_last() {
        let raw: Vec<u8> = (0..11).collect();
        let cases: [(_, [u8; 11]); 3] = [
            (Width::Two, [0, 2, 4, 6, 8, 1, 3, 5, 7, 9, 10]),
            (Width::Four, [0, 4, 1, 5, 2, 6, 3, 7, 8, 9, 10]),
            (Width::Eight, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ];
        for (width, expected) in cases {
            let mut planes = [0; 11];
            shuffle(width, &raw, &mut planes).unwrap();
            assert_eq!(planes, expected, "{width:?}");
        }
    }

    #[test]
    fn any_length_comes_back() {
        let raw: Vec<u8> = (0..70_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let lens = (0..40).chain([1023, 2048, 4096, 8191, 8192, 8193, 65_543, 70_000]);
        for (len, width) in lens.flat_map(|len| WIDTHS.map(|width| (len, width))) {
            let (raw, bytes) = (&raw[..len], width.bytes());
            let (mut planes, mut back) = (vec![0xaa; len], vec![0x55; len]);
            shuffle(width, raw, &mut planes).unwrap();
            for (at, byte) in planes[..len / bytes * bytes].iter().enumerate() {
                let (plane, element) = (at / (len / bytes), at % (len / bytes));
                assert_eq!(*byte, raw[element * bytes + plane], "{len} {width:?}");
            }
            unshuffle(width, &planes, &mut back).unwrap();
            assert_eq!(back, raw, "{len} {width:?}");
        }
    }

    #[test]
    fn other_lengths_are_errors() {
        for (width, other) in WIDTHS.into_iter().flat_map(|width| [0, 15, 17, 40].map(|other| (width, other)))
        {
            assert!(shuffle(width, &[0; 16], &mut vec![0; other]).is_err());
            assert!(unshuffle(width, &vec![0; other], &mut [0; 16]).is_err());
        }
    }

    #[test]
    fn complex_numbers_have_the_width_of_their_parts() {
        assert_eq!(Width::of(DType::Complex64), Some(Width::Four));
        assert_eq!(Width::of(DType::Complex128), Some(Width::Eight));
        assert_eq!(Width::of(DType::Bf16), Some(Width::Two));
        for narrow in [DType::Bool, DType::U8, DType::F8E4m3, DType::String] {
            assert_eq!(Width::of(narrow), None);
        }
    }

    #[test]
    #[ignore = "measures; needs --release"]
    fn speed() {
        let raw = vec![1u8; 4 << 20];
        let (mut planes, mut back) = (raw.clone(), raw.clone());
        let gib = |started: Instant| {
            (200 * raw.len()) as f64 / started.elapsed().as_secs_f64() / f64::from(1 << 30)
        };
        for width in WIDTHS {
            let started = Instant::now();
            (0..200).for_each(|_| shuffle(width, black_box(&raw), black_box(&mut planes)).unwrap());
            let to = gib(started);
            let started = Instant::now();
            (0..200).for_each(|_| unshuffle(width, black_box(&planes), black_box(&mut back)).unwrap());
            println!("{width:?}: shuffle {to:.1} GiB/s, unshuffle {:.1} GiB/s", gib(started));
        }
    }
}
