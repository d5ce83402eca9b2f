//! The rows of the decode step: their state on the device, recorded graphs of the step, and its results on their way.

use std::collections::HashMap;

use super::super::block::Net;
use super::super::gpu::{Graph, Grid, Landing, Ptr, args};
use super::draw::{self, Ask, Drawn};
use super::pages::Pages;
use super::step::Step;
use crate::Result;
use crate::engine::sampling::Draw;

/// Steps whose results may be on their way at a time.
const FLIGHTS: usize = 2;

/// What the host sets of a row.
#[derive(Clone, Debug)]
pub struct RowState {
    pub token: u32,
    /// Of the token that is fed.
    pub position: usize,
    pub table: Vec<u32>,
    pub ask: Ask,
}

/// See the module's header.
#[derive(Debug)]
pub struct Rows {
    step: Step,
    asks: super::super::gpu::Buffer,
    draws: super::super::gpu::Buffer,
    landings: Vec<Landing<Drawn>>,
    /// Plain runs so far, then the graph, by number of rows.
    graphs: HashMap<usize, Option<Graph>>,
    /// Rows that the step computes.
    count: usize,
    filtered: bool,
    launched: usize,
    landed: usize,
}

impl Rows {
    pub fn new(net: &Net<'_>, capacity: usize, width: usize) -> Result<Self> {
        let capacity = bucket(capacity);
        Ok(Self {
            step: Step::new(net, capacity, width)?,
            asks: net.gpu.zeros(capacity * size_of::<Ask>())?,
            draws: net.gpu.zeros(capacity * size_of::<Drawn>())?,
            landings: (0..FLIGHTS).map(|_| net.gpu.landing(capacity)).collect::<Result<_>>()?,
            graphs: HashMap::new(),
            count: 0,
            filtered: false,
            launched: 0,
            landed: 0,
        })
    }

    pub fn capacity(&self) -> usize {
        self.step.rows
    }

    /// Rows that the step computes now, idle ones included.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Sets every row; nothing may be on its way.
    pub fn set(&mut self, net: &Net<'_>, rows: &[RowState]) -> Result<()> {
        debug_assert_eq!(self.launched, self.landed, "results are on their way");
        self.count = bucket(rows.len());
        let width = self.step.width;
        let (mut tokens, mut positions) = (vec![0i32; self.count], vec![-1i32; self.count]);
        let (mut tables, mut asks) = (vec![0i32; self.count * width], vec![Ask::default(); self.count]);
        for (i, row) in rows.iter().enumerate() {
            (tokens[i], positions[i], asks[i]) = (row.token as i32, row.position as i32, row.ask);
            for (to, &page) in tables[i * width..][..width].iter_mut().zip(&row.table) {
                *to = page as i32;
            }
        }
        self.filtered = rows.iter().any(|row| row.ask.is_filtered());
        let gpu = net.gpu;
        gpu.write(self.step.tokens.ptr(), &tokens)?;
        gpu.write(self.step.positions.ptr(), &positions)?;
        gpu.write(self.step.tables.ptr(), &tables)?;
        gpu.write(self.asks.ptr(), &asks)
    }

    /// Gives a row one more page: entry `at` of its table.
    pub fn set_page(&self, net: &Net<'_>, row: usize, at: usize, page: u32) -> Result<()> {
        net.gpu.write(self.step.tables.at(4 * (row * self.step.width + at)), &[page as i32])
    }

    /// Leaves a row idle.
    pub fn stop(&self, net: &Net<'_>, row: usize) -> Result<()> {
        net.gpu.write(self.step.positions.at(4 * row), &[-1i32])
    }

    /// Whether results of steps are on their way.
    pub fn in_flight(&self) -> usize {
        self.launched - self.landed
    }

    /// Launches a step; its draws are given by [`Rows::land`], and are fed to the next step without waiting for that.
    pub fn launch(&mut self, net: &Net<'_>, pages: &Pages) -> Result<()> {
        let count = self.count;
        if self.filtered {
            self.step.run(net, pages, count)?;
        } else if let Some(graph) = self.graphs.get_mut(&count) {
            if graph.is_none() && net.gpu.records() {
                let (step, asks, draws) = (&self.step, self.asks.ptr(), self.draws.ptr());
                *graph = Some(net.gpu.capture(|| whole(net, step, pages, asks, draws, count))?);
            }
            match graph {
                Some(graph) => graph.launch()?,
                None => whole(net, &self.step, pages, self.asks.ptr(), self.draws.ptr(), count)?,
            }
        } else {
            // The first run loads and plans what a recording must not.
            whole(net, &self.step, pages, self.asks.ptr(), self.draws.ptr(), count)?;
            self.graphs.insert(count, None);
        }
        if self.filtered {
            // Drawn on the host, from the asks as the device has them.
            let asks: Vec<Ask> = net.gpu.download(self.asks.ptr(), count)?;
            let drawn = draw::draw(net, &self.step.logits, &asks)?;
            let tokens: Vec<i32> = drawn.iter().map(|d| d.token as i32).collect();
            let all: Vec<Drawn> = drawn.iter().map(Drawn::from_draw).collect();
            net.gpu.write(self.step.tokens.ptr(), &tokens)?;
            net.gpu.write(self.draws.ptr(), &all)?;
            advance(net, &self.step, self.asks.ptr(), count)?;
        }
        self.landings[self.launched % FLIGHTS].send(net.gpu, self.draws.ptr(), count)?;
        self.launched += 1;
        Ok(())
    }

    /// Waits for the oldest step on its way; a draw per row, idle ones included.
    pub fn land(&mut self) -> Result<Vec<Drawn>> {
        let landing = &self.landings[self.landed % FLIGHTS];
        self.landed += 1;
        landing.wait()
    }
}

/// The number of rows that a step computes for `rows` running ones: few sizes, so that few graphs are recorded.
pub fn bucket(rows: usize) -> usize {
    match rows {
        0..=2 => rows.max(1),
        3..=8 => rows.next_multiple_of(2),
        9..=64 => rows.next_multiple_of(8),
        _ => rows.next_multiple_of(32),
    }
}

/// The model, the draw, and the rows one token further.
fn whole(net: &Net<'_>, step: &Step, pages: &Pages, asks: Ptr, draws: Ptr, count: usize) -> Result<()> {
    step.run(net, pages, count)?;
    draw::launch(net, step.logits.ptr(), asks, draws, step.tokens.ptr(), count)?;
    advance(net, step, asks, count)
}

fn advance(net: &Net<'_>, step: &Step, asks: Ptr, count: usize) -> Result<()> {
    net.gpu.launch("decode_advance", Grid::each(count), args![&step.positions, asks, count as i32])
}

/// A finite draw of `row`.
///
/// # Errors
/// Where its logits were not finite.
pub fn drawn(all: &[Drawn], row: usize) -> Result<Draw> {
    all[row].finished()
}
