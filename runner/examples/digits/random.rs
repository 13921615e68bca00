//! A small random generator whose whole state is four numbers, so that a checkpoint can hold it.

/// xoshiro256++ by D. Blackman and S. Vigna.
#[derive(Clone)]
pub struct Random(pub [u64; 4]);

impl Random {
    /// A generator started from a seed, its state filled by splitmix64.
    pub fn new(seed: u64) -> Self {
        let mut at = seed;
        Self([(); 4].map(|()| {
            at = at.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (at ^ (at >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }))
    }

    fn next(&mut self) -> u64 {
        let [s0, s1, s2, s3] = &mut self.0;
        let next = s0.wrapping_add(*s3).rotate_left(23).wrapping_add(*s0);
        let shifted = *s1 << 17;
        *s2 ^= *s0;
        *s3 ^= *s1;
        *s1 ^= *s2;
        *s0 ^= *s3;
        *s2 ^= shifted;
        *s3 = s3.rotate_left(45);
        next
    }

    /// A number from `-limit` to `limit`.
    pub fn within(&mut self, limit: f32) -> f32 {
        let from_0_to_1 = (self.next() >> 40) as f32 / (1u32 << 24) as f32;
        (2.0 * from_0_to_1 - 1.0) * limit
    }

    /// Puts the items in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = (u128::from(self.next()) * (last as u128 + 1)) >> 64;
            items.swap(last, other as usize);
        }
    }
}
