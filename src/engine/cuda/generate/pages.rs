//! Keys and values in pages of a fixed number of positions.

use super::super::block::Net;
use super::super::gpu::{Buffer, Grid, Ptr, args};
use crate::Result;

/// Positions of a page.
pub const SIZE: usize = 64;

/// One buffer `[layers][keys, values][pages][kv_heads][SIZE][dim]` and the pages that are free.
#[derive(Debug)]
pub struct Pages {
    cache: Buffer,
    count: usize,
    free: Vec<u32>,
    least_free: usize,
}

/// Bytes of a page over all layers.
pub fn page_bytes(net: &Net<'_>) -> usize {
    2 * net.config.num_layers * net.gpu.act(page_elements(net))
}

fn page_elements(net: &Net<'_>) -> usize {
    net.config.num_kv_heads * SIZE * net.config.head_dim
}

/// Pages that `positions` need.
pub fn pages_of(positions: usize) -> usize {
    positions.div_ceil(SIZE)
}

impl Pages {
    pub fn new(net: &Net<'_>, count: usize) -> Result<Self> {
        let cache = net.gpu.alloc(count * page_bytes(net))?;
        // The lowest numbers first.
        Ok(Self { cache, count, free: (0..count as u32).rev().collect(), least_free: count })
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// The most pages that were in use at a time.
    pub fn peak(&self) -> usize {
        self.count - self.least_free
    }

    pub fn take(&mut self) -> Option<u32> {
        let page = self.free.pop();
        self.least_free = self.least_free.min(self.free.len());
        page
    }

    /// All of `count`, or none.
    pub fn take_many(&mut self, count: usize) -> Option<Vec<u32>> {
        if self.free.len() < count {
            return None;
        }
        Some((0..count).filter_map(|_| self.take()).collect())
    }

    pub fn give_back(&mut self, pages: impl IntoIterator<Item = u32>) {
        self.free.extend(pages);
    }

    /// Keys and values of a layer.
    pub fn layer(&self, net: &Net<'_>, layer: usize) -> (Ptr, Ptr) {
        let part = net.gpu.act(self.count * page_elements(net));
        (self.cache.at(2 * layer * part), self.cache.at((2 * layer + 1) * part))
    }

    /// Stores the keys and values of `[rows, q + k + v]`: `slots` are ints, page * SIZE + place, none below zero.
    pub fn write(&self, net: &Net<'_>, layer: usize, qkv: Ptr, slots: Ptr, rows: usize) -> Result<()> {
        let (q_width, kv_width) = net.widths();
        let (keys, values) = self.layer(net, layer);
        let (k, v) = (qkv.at(net.gpu.act(q_width)), qkv.at(net.gpu.act(q_width + kv_width)));
        let (ld, heads, dim) = ((q_width + 2 * kv_width) as i64, net.config.num_kv_heads, net.config.head_dim);
        let args = args![keys, values, k, v, ld, slots, heads as i32, SIZE as i32, dim as i32];
        net.gpu.launch("cache_write", Grid::rows(rows, kv_width), args)
    }

    /// Copies pages `(from, to)` in every layer.
    pub fn copy(&self, net: &Net<'_>, pairs: &[[i32; 2]]) -> Result<()> {
        if pairs.is_empty() {
            return Ok(());
        }
        let on_device = net.gpu.upload(pairs)?;
        let page = page_elements(net);
        let grid = Grid::new([pairs.len(), 2 * net.config.num_layers, 1], 256);
        net.gpu.launch("copy_pages", grid, args![&self.cache, &on_device, (self.count * page) as i64, page as i32])
    }
}
