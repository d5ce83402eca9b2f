//! Which kernel, grid and cut a product of few tokens takes: from the times in docs/kernels.md.

use crate::quant::Format;

/// One instance of `SmallGemm` (kernels/gemm_small.cuh); the numbers are its template's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    pub name: &'static str,
    /// Tokens that it takes at most, a multiple of 8.
    pub tokens: usize,
    /// Strips of 16 rows of a tile, and of a warp.
    pub strips: usize,
    warp_strips: usize,
    /// Warps that share the blocks of a stage.
    parts: usize,
    /// Blocks of 64 columns of a stage, and stages.
    pub blocks: usize,
    stages: usize,
    /// Bytes of a block of weights.
    block: usize,
}

impl Kernel {
    const fn new(name: &'static str, block: usize, of: [usize; 6]) -> Self {
        let [tokens, strips, warp_strips, parts, blocks, stages] = of;
        Self { name, tokens: tokens * 8, strips, warp_strips, parts, blocks, stages, block }
    }

    pub fn threads(&self) -> usize {
        self.strips / self.warp_strips * self.parts * 32 + 32
    }

    /// Bytes of dynamic shared memory: barriers, stages of weights and tokens, two turns of partial sums.
    pub fn shared(&self) -> usize {
        let stage = self.strips * self.blocks * self.block + self.tokens * self.blocks * 144;
        let sums = (self.parts - 1) * self.strips * (self.tokens / 8) * 512;
        256 + self.stages * stage + 2 * sums
    }

    /// Floats of scratch that a grid of `blocks` needs.
    pub fn scratch(&self, blocks: usize) -> usize {
        blocks * self.strips * 16 * self.tokens
    }
}

const FOUR_BIT: usize = 576;
const DENSE: usize = 2048;
const E2M1: [Kernel; 4] = [
    Kernel::new("gemm_e2m1_8", FOUR_BIT, [1, 4, 2, 8, 16, 3]),
    Kernel::new("gemm_e2m1_16", FOUR_BIT, [2, 4, 2, 4, 8, 4]),
    Kernel::new("gemm_e2m1_32", FOUR_BIT, [4, 8, 2, 2, 4, 4]),
    Kernel::new("gemm_e2m1_64", FOUR_BIT, [8, 8, 2, 2, 4, 3]),
];
const NF4: [Kernel; 2] =
    [Kernel::new("gemm_nf4_8", FOUR_BIT, [1, 8, 2, 2, 4, 4]), Kernel::new("gemm_nf4_16", FOUR_BIT, [2, 8, 2, 2, 4, 4])];
const BF16: [Kernel; 2] =
    [Kernel::new("gemm_bf16_16", DENSE, [2, 8, 2, 2, 2, 4]), Kernel::new("gemm_bf16_32", DENSE, [4, 8, 2, 2, 2, 4])];

/// Every kernel of a format, by rising number of tokens.
pub fn kernels(format: Format) -> &'static [Kernel] {
    match format {
        // MXFP4 is kept as e2m1 with e5m3 scales.
        Format::Nvfp4 | Format::Mxfp4 => &E2M1,
        Format::Nf4 => &NF4,
        Format::Bf16 => &BF16,
    }
}

/// A launch: the kernel, its blocks, and the `granule` of its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub kernel: Kernel,
    pub grid: usize,
    pub granule: usize,
}

/// For `tokens` rows of x and W `[n, k]` on a GPU of `processors` multiprocessors with `shared` bytes of shared memory
/// each for a block; `None` where no kernel fits and the general path must do.
pub fn choose(format: Format, [n, k]: [usize; 2], tokens: usize, processors: usize, shared: usize) -> Option<Choice> {
    if !n.is_multiple_of(16) || !k.is_multiple_of(64) || tokens == 0 || n == 0 || k == 0 {
        return None;
    }
    let kernel = *kernels(format).iter().find(|kernel| kernel.tokens >= tokens)?;
    if kernel.shared() > shared {
        return None;
    }
    let tiles = n.div_ceil(16 * kernel.strips);
    // Where the tiles nearly fill the chip, they stay whole: nobody waits for another's sums.
    let granule = if tiles <= processors && 2 * tiles > processors { k / 64 } else { kernel.blocks.min(k / 64) };
    let work = tiles * (k / 64).div_ceil(granule);
    Some(Choice { kernel, grid: work.min(processors), granule })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOPPER: [usize; 2] = [132, 227 << 10];

    #[test]
    fn every_kernel_fits_a_hopper_block_and_whole_warps_of_strips() {
        for format in [Format::Nvfp4, Format::Mxfp4, Format::Nf4, Format::Bf16] {
            let all = kernels(format);
            assert!(all.is_sorted_by_key(|kernel| kernel.tokens));
            for kernel in all {
                assert!(kernel.shared() <= HOPPER[1], "{kernel:?} takes {}", kernel.shared());
                assert!(kernel.threads() <= 1024 && kernel.strips.is_multiple_of(kernel.warp_strips));
                assert!(kernel.blocks.is_multiple_of(kernel.parts));
            }
        }
    }

    #[test]
    fn the_numbers_are_those_of_the_kernels_text() {
        for format in [Format::Nvfp4, Format::Nf4, Format::Bf16] {
            for kernel in kernels(format) {
                let unit = kernel.name.rsplit_once('_').unwrap().0;
                let text = super::super::source::SOURCES.iter().find(|s| s.name == format!("{unit}.cu")).unwrap().text;
                let line = text.lines().find(|line| line.contains(&format!("({},", kernel.name))).unwrap();
                let numbers: Vec<usize> =
                    line.trim_end_matches(')').split(", ").filter_map(|x| x.parse().ok()).collect();
                let k = kernel;
                assert_eq!(numbers, [k.tokens / 8, k.strips, k.warp_strips, k.parts, k.blocks, k.stages], "{line}");
            }
        }
    }

    #[test]
    fn the_grid_never_exceeds_the_work() {
        for [n, k] in [[16, 64], [576, 576], [4608, 3584], [37888, 3584], [3584, 18944], [152_064, 3584]] {
            for tokens in [1, 8, 9, 32] {
                let choice = choose(Format::Nvfp4, [n, k], tokens, HOPPER[0], HOPPER[1]).unwrap();
                assert!(choice.kernel.tokens >= tokens && choice.grid >= 1 && choice.granule >= 1);
                let tiles = n.div_ceil(16 * choice.kernel.strips);
                assert!(choice.grid <= tiles * (k / 64).div_ceil(choice.granule));
            }
        }
        assert_eq!(choose(Format::Nvfp4, [48, 48], 1, HOPPER[0], HOPPER[1]), None, "no whole block of columns");
        assert_eq!(choose(Format::Nf4, [64, 64], 33, HOPPER[0], HOPPER[1]), None, "too many tokens");
        assert_eq!(choose(Format::Bf16, [64, 64], 8, 108, 99 << 10), None, "too much shared memory");
    }
}
