//! Pure. Numbers that spread answers over endpoints. They are no secret: whoever reads an answer sees the order.

/// Marsaglia's xorshift64*.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Two seeds give two rows.
    pub fn new(seed: u64) -> Random {
        // Zero would stay zero.
        Random(seed | 1)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Less than `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.draw()) * bound as u128) >> 64) as usize
    }

    /// A random choice of at most `most` of them, in random order: each that fits is as likely as any other.
    pub fn choose<T>(&mut self, items: &mut Vec<T>, most: usize) {
        let most = most.min(items.len());
        for at in 0..most {
            let other = at + self.below(items.len() - at);
            items.swap(at, other);
        }
        items.truncate(most);
    }
}
