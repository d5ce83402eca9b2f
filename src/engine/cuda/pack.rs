//! Packed tokens on the device: see [`crate::engine::cpu::batch::Packed`] for how rows are packed.

use super::gpu::{Buffer, Gpu};
use crate::Result;
use crate::engine::cpu::batch::Packed;

/// What kernels read about each packed token.
#[derive(Debug)]
pub struct Meta {
    pub tokens: usize,
    pub ids: Buffer,
    pub positions: Buffer,
    /// `int4` a token: the shared prompt's first key and end, the own first key, the first token that does not see
    /// this one.
    pub spans: Buffer,
}

impl Meta {
    pub fn upload(gpu: &Gpu, packed: &Packed) -> Result<Self> {
        let ints = |x: &[u32]| x.iter().map(|&x| x as i32).collect::<Vec<i32>>();
        Ok(Self {
            tokens: packed.tokens.len(),
            ids: gpu.upload(&ints(&packed.tokens))?,
            positions: gpu.upload(&ints(&packed.positions))?,
            spans: gpu.upload(&spans(packed))?,
        })
    }
}

fn spans(packed: &Packed) -> Vec<[i32; 4]> {
    let mut out = vec![[0i32; 4]; packed.tokens.len()];
    for span in &packed.spans {
        for token in span.own.clone() {
            out[token] = [span.prefix.start as i32, span.prefix.end as i32, span.own.start as i32, span.own.end as i32];
        }
        // Rows of one prompt stand right behind it, one after the other.
        for token in span.prefix.clone() {
            out[token][3] = out[token][3].max(span.own.end as i32);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Row;

    #[test]
    fn queries_and_keys_agree_on_who_sees_whom() {
        let row = |prompt: &[u32], completion: &[u32]| Row { prompt: prompt.into(), completion: completion.to_vec() };
        let rows = [row(&[1, 2], &[3, 4, 5]), row(&[7], &[8]), row(&[1, 2], &[6, 7]), row(&[9, 9], &[1, 2, 3])];
        let packed = Packed::new(rows.iter().enumerate());
        let spans = spans(&packed);
        for (query, &[from, to, own, _]) in spans.iter().enumerate() {
            for (key, &[.., until]) in spans.iter().enumerate() {
                let sees = (from as usize..to as usize).contains(&key) || (own as usize..=query).contains(&key);
                let seen = (key..until as usize).contains(&query);
                // A key of a shared prompt is seen by everything behind it in its group.
                assert_eq!(sees, seen, "query {query}, key {key}: {spans:?}");
            }
        }
    }
}
