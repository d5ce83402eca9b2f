//! Prompts, and sequences that had to stop, go through the model as packed rows; then first tokens are drawn.

use super::super::gpu::{Buffer, Grid, args};
use super::super::head;
use super::super::pack::Meta;
use super::super::tape;
use super::draw;
use super::pages::SIZE;
use super::{Run, Sequence};
use crate::engine::cpu::batch::Packed;
use crate::engine::cpu::kernels::attention::Span;
use crate::engine::sampling::Draw;
use crate::{Error, Result};

/// Where the logits after a row's last token go.
enum Owner {
    Group(usize),
    /// Index into the fresh sequences.
    Sequence(usize),
}

impl Run<'_> {
    /// Computes the prompts of groups `prompts` and the resumed ones among `fresh`, gives each fresh sequence its
    /// pages, and draws its next token.
    pub(super) fn prefill(&mut self, prompts: &[usize], fresh: &mut [Sequence]) -> Result<Vec<Draw>> {
        let mut packed = Packed::default();
        let (mut slots, mut last, mut owners) = (Vec::new(), Vec::new(), Vec::new());
        let mut add = |tokens: &[&[u32]], table: &[u32], owner: Owner| {
            let start = packed.tokens.len();
            for &token in tokens.iter().copied().flatten() {
                let position = packed.tokens.len() - start;
                packed.tokens.push(token);
                packed.positions.push(position as u32);
                slots.push((table[position / SIZE] as usize * SIZE + position % SIZE) as i32);
            }
            let end = packed.tokens.len();
            packed.spans.push(Span::whole(start..end));
            last.push((end - 1) as i32);
            owners.push(owner);
        };
        for &group in prompts {
            if let Some((pages, _)) = &self.groups[group].ready {
                add(&[self.groups[group].prompt], pages, Owner::Group(group));
            }
        }
        for (i, sequence) in fresh.iter().enumerate().filter(|(_, s)| !s.tokens.is_empty()) {
            let tokens = [self.groups[sequence.group].prompt, &sequence.tokens];
            add(&tokens, &sequence.table, Owner::Sequence(i));
        }
        let mut resumed: Vec<Option<Buffer>> = fresh.iter().map(|_| None).collect();
        if !owners.is_empty() {
            let logits = self.pass(&packed, &slots, &last)?;
            let (gpu, row) = (self.net.gpu, 4 * self.net.config.vocab_size);
            for (i, owner) in owners.iter().enumerate() {
                let from = logits.at(i * row);
                match *owner {
                    Owner::Group(group) => {
                        if let Some((_, own)) = &self.groups[group].ready {
                            gpu.copy(own.ptr(), from, row)?;
                        }
                    }
                    Owner::Sequence(at) => {
                        let own = gpu.alloc(row)?;
                        gpu.copy(own.ptr(), from, row)?;
                        resumed[at] = Some(own);
                    }
                }
            }
        }
        self.share(fresh)?;
        self.draw_first(fresh, &resumed)
    }

    /// The logits after the packed rows' last tokens; keys and values go to `slots`.
    fn pass(&self, packed: &Packed, slots: &[i32], last: &[i32]) -> Result<Buffer> {
        let net = self.net;
        let pages = self.pages.as_ref().ok_or_else(|| Error::failed("generation has no cache"))?;
        let meta = Meta::upload(net.gpu, packed)?;
        let slots = net.gpu.upload(slots)?;
        let hidden = tape::hidden(net, &meta, |layer, qkv| pages.write(net, layer, qkv, slots.ptr(), meta.tokens))?;
        let at = net.gpu.upload(last)?;
        let width = net.config.hidden_size;
        let rows = net.gpu.alloc_act(last.len() * width)?;
        net.gpu.launch("gather", Grid::rows(last.len(), width), args![&rows, &hidden, &at, width as i32])?;
        head::logits(net, &rows, last.len())
    }

    /// New sequences see their prompt's full pages and get a copy of the one in which it ends.
    fn share(&mut self, fresh: &mut [Sequence]) -> Result<()> {
        let mut pairs = Vec::new();
        for sequence in fresh.iter_mut().filter(|s| s.tokens.is_empty()) {
            let group = &self.groups[sequence.group];
            let Some((pages, _)) = &group.ready else { continue };
            let (full, rest) = (group.prompt.len() / SIZE, group.prompt.len() % SIZE);
            let own = std::mem::take(&mut sequence.table);
            if rest > 0 {
                pairs.push([pages[full] as i32, own[0] as i32]);
            }
            sequence.table = pages[..full].iter().copied().chain(own).collect();
            sequence.shared = full;
        }
        match &self.pages {
            Some(pages) => pages.copy(self.net, &pairs),
            None => Ok(()),
        }
    }

    fn draw_first(&self, fresh: &[Sequence], resumed: &[Option<Buffer>]) -> Result<Vec<Draw>> {
        let (gpu, vocab) = (self.net.gpu, self.net.config.vocab_size);
        let piece = head::piece_rows(vocab);
        let mut draws = Vec::with_capacity(fresh.len());
        for (fresh, resumed) in fresh.chunks(piece).zip(resumed.chunks(piece)) {
            let logits = gpu.alloc_floats(fresh.len() * vocab)?;
            let mut asks = Vec::with_capacity(fresh.len());
            for (i, (sequence, own)) in fresh.iter().zip(resumed).enumerate() {
                let ready = self.groups[sequence.group].ready.as_ref().map(|(_, logits)| logits);
                let from = own.as_ref().or(ready).ok_or_else(|| Error::failed("a prompt's logits were lost"))?;
                gpu.copy(logits.at(4 * i * vocab), from.ptr(), 4 * vocab)?;
                asks.push(self.ask(sequence));
            }
            draws.extend(draw::draw(self.net, &logits, &asks)?);
        }
        Ok(draws)
    }
}
