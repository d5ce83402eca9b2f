//! The extent of a launch.

/// Blocks, threads of a block, bytes of dynamic shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    pub blocks: [usize; 3],
    pub threads: usize,
    pub shared: usize,
}

impl Grid {
    pub fn new(blocks: [usize; 3], threads: usize) -> Self {
        Self { blocks, threads, shared: 0 }
    }

    /// A block per row.
    pub fn rows(rows: usize, width: usize) -> Self {
        Self::new([rows, 1, 1], width.next_multiple_of(32).clamp(32, 512))
    }

    /// For loops over `n` elements with any number of threads.
    pub fn each(n: usize) -> Self {
        Self::new([n.div_ceil(256).clamp(1, 1 << 16), 1, 1], 256)
    }

    #[must_use]
    pub fn shared(self, bytes: usize) -> Self {
        Self { shared: bytes, ..self }
    }
}
