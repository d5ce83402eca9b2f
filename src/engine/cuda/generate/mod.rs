//! Generation with continuous batching over a paged cache.
//!
//! Requests of one prompt share its prefill and the full pages of its keys and values; the page in which it ends is
//! copied for each. A finished sequence's place is refilled at once. When no page is left, the youngest sequence gives
//! its pages back and is computed again later.

mod draw;
mod pages;
mod prefill;
mod step;

use std::collections::{HashMap, VecDeque};

use draw::Ask;
use pages::{Pages, page_bytes, pages_of};
use step::Step;

use super::block::Net;
use super::gpu::Buffer;
use crate::control::Cancel;
use crate::engine::cpu::batch::check_tokens;
use crate::engine::sampling::Draw;
use crate::engine::{Completion, Finish, Request};
use crate::error::Kind;
use crate::{Error, Result};

/// Sequences that decode side by side.
const MAX_ACTIVE: usize = 256;
/// Tokens of a prefill pass.
const PREFILL: usize = 8192;

/// Requests of one prompt.
#[derive(Debug)]
struct Group<'a> {
    prompt: &'a [u32],
    /// The prompt's pages and the logits after it (f32 `[vocab]`), once it is computed.
    ready: Option<(Vec<u32>, Buffer)>,
    unfinished: usize,
}

/// A request on its way.
#[derive(Debug)]
struct Sequence {
    request: usize,
    group: usize,
    limit: usize,
    tokens: Vec<u32>,
    log_probs: Vec<f32>,
    /// Its pages; the first `shared` belong to the group.
    table: Vec<u32>,
    shared: usize,
}

/// The completions, and the most bytes that keys and values took.
pub struct Outcome {
    pub completions: Vec<Completion>,
    pub kv_peak: u64,
}

/// See [`crate::engine::Engine::generate`]. `kv_budget` in bytes.
pub fn generate(
    net: &Net<'_>,
    requests: &[Request],
    eos: &[u32],
    kv_budget: u64,
    cancel: &Cancel,
    tick: &mut dyn FnMut(usize, usize),
) -> Result<Outcome> {
    let mut run = Run::new(net, requests, eos, kv_budget)?;
    while !(run.waiting.is_empty() && run.active.is_empty()) {
        cancel.check()?;
        let before = run.drawn;
        run.start()?;
        run.advance()?;
        tick(run.finished(), run.drawn - before);
    }
    let lost = || Error::failed("a request was lost");
    let completions = run.done.into_iter().map(|done| done.ok_or_else(lost)).collect::<Result<_>>()?;
    let kv_peak = run.pages.map_or(0, |pages| pages.peak() * page_bytes(net)) as u64;
    Ok(Outcome { completions, kv_peak })
}

struct Run<'a> {
    net: &'a Net<'a>,
    requests: &'a [Request],
    eos: &'a [u32],
    /// `None` where nothing is to be generated.
    pages: Option<Pages>,
    step: Option<Step>,
    groups: Vec<Group<'a>>,
    waiting: VecDeque<Sequence>,
    active: Vec<Sequence>,
    done: Vec<Option<Completion>>,
    drawn: usize,
}

impl<'a> Run<'a> {
    fn new(net: &'a Net<'a>, requests: &'a [Request], eos: &'a [u32], kv_budget: u64) -> Result<Self> {
        let (vocab, context) = (net.config.vocab_size, net.config.max_position);
        let mut groups: Vec<Group<'a>> = Vec::new();
        let mut known: HashMap<&[u32], usize> = HashMap::new();
        let mut done = vec![None; requests.len()];
        let mut waiting = VecDeque::new();
        for (request, ask) in requests.iter().enumerate() {
            if ask.prompt.is_empty() {
                return Err(Error::input(format!("request {request} has an empty prompt")));
            }
            check_tokens(request, &ask.prompt, vocab)?;
            if ask.prompt.len() >= context {
                return Err(Error::input(format!(
                    "the prompt of request {request} has {} tokens, which leaves no room in the model's context of {context}",
                    ask.prompt.len()
                ))
                .hint("shorten the prompt, or leave such problems out with max_prompt_tokens"));
            }
            let limit = ask.max_new_tokens.min(context - ask.prompt.len());
            if limit == 0 {
                done[request] = Some(Completion { tokens: vec![], log_probs: vec![], finish: Finish::Length });
                continue;
            }
            let group = *known.entry(&ask.prompt).or_insert(groups.len());
            if group == groups.len() {
                groups.push(Group { prompt: &ask.prompt, ready: None, unfinished: 0 });
            }
            groups[group].unfinished += 1;
            let (tokens, log_probs, table) = (vec![], vec![], vec![]);
            waiting.push_back(Sequence { request, group, limit, tokens, log_probs, table, shared: 0 });
        }
        let (mut pages, mut step) = (None, None);
        if !waiting.is_empty() {
            let longest = waiting.iter().map(|s| groups[s.group].prompt.len() + s.limit).max().unwrap_or(0);
            pages = Some(room(net, &groups, &waiting, longest, kv_budget)?);
            step = Some(Step::new(net, waiting.len().min(MAX_ACTIVE), pages_of(longest))?);
        }
        Ok(Self { net, requests, eos, pages, step, groups, waiting, active: Vec::new(), done, drawn: 0 })
    }

    fn finished(&self) -> usize {
        self.done.iter().flatten().count()
    }

    fn pages(&mut self) -> Result<&mut Pages> {
        self.pages.as_mut().ok_or_else(|| Error::failed("generation has no cache"))
    }

    /// Starts waiting sequences while there is room: their prompts are computed and their first tokens drawn.
    fn start(&mut self) -> Result<()> {
        let capacity = self.step.as_ref().map_or(0, |step| step.rows);
        let (mut fresh, mut prompts, mut tokens) = (Vec::new(), Vec::new(), 0);
        while self.active.len() + fresh.len() < capacity && tokens < PREFILL {
            let Some(next) = self.waiting.front() else { break };
            let group = next.group;
            let prompt = self.groups[group].prompt.len();
            let resumed = !next.tokens.is_empty();
            let known = self.groups[group].ready.is_some() || prompts.contains(&group);
            let need = match (resumed, known) {
                (true, _) => pages_of(prompt + next.tokens.len() + 1),
                (false, true) => 1,
                (false, false) => pages_of(prompt) + 1,
            };
            // A page for each running sequence stays free, so that they do not have to stop at once.
            let (reserve, in_use) = (self.active.len() + fresh.len(), self.groups.len());
            let first = self.active.is_empty() && fresh.is_empty();
            if self.pages()?.free() < need + reserve {
                if first && in_use > 0 && self.give_back_prompts(group)? {
                    continue;
                }
                if !first {
                    break;
                }
            }
            let Some(mut own) = self.pages()?.take_many(need) else {
                return Err(Error::new(Kind::Device, "the cache has no room for a single sequence")
                    .hint("ask for shorter completions or free memory on the GPU"));
            };
            let Some(mut sequence) = self.waiting.pop_front() else { break };
            if resumed {
                tokens += prompt + sequence.tokens.len();
                (sequence.table, sequence.shared) = (own, 0);
            } else {
                if !known {
                    tokens += prompt;
                    let last = own.split_off(own.len() - 1);
                    let logits = self.net.gpu.alloc_floats(self.net.config.vocab_size)?;
                    self.groups[group].ready = Some((std::mem::replace(&mut own, last), logits));
                    prompts.push(group);
                }
                sequence.table = own;
            }
            fresh.push(sequence);
        }
        if fresh.is_empty() {
            return Ok(());
        }
        let draws = self.prefill(&prompts, &mut fresh)?;
        self.active.append(&mut fresh);
        let from = self.active.len() - draws.len();
        self.take(from, &draws);
        Ok(())
    }

    /// Frees the pages of prompts that nobody uses now, except `keep`'s; whether there were any.
    fn give_back_prompts(&mut self, keep: usize) -> Result<bool> {
        let mut freed = Vec::new();
        for (i, group) in self.groups.iter_mut().enumerate() {
            let used = self.active.iter().any(|s| s.group == i && s.shared > 0);
            if i != keep && !used && let Some((pages, _)) = group.ready.take() {
                freed.extend(pages);
            }
        }
        let any = !freed.is_empty();
        self.pages()?.give_back(freed);
        Ok(any)
    }

    /// Feeds the last token of every running sequence and draws the next.
    fn advance(&mut self) -> Result<()> {
        self.make_room()?;
        let (Some(step), Some(pages)) = (&self.step, &self.pages) else { return Ok(()) };
        let rows = self.active.len();
        if rows == 0 {
            return Ok(());
        }
        let mut tables = vec![0i32; rows * step.width];
        let (mut tokens, mut positions, mut asks) = (vec![0i32; rows], vec![0i32; rows], Vec::with_capacity(rows));
        for (row, sequence) in self.active.iter().enumerate() {
            let prompt = self.groups[sequence.group].prompt.len();
            tokens[row] = sequence.tokens.last().map_or(0, |&token| token as i32);
            positions[row] = (prompt + sequence.tokens.len() - 1) as i32;
            for (to, &page) in tables[row * step.width..].iter_mut().zip(&sequence.table) {
                *to = page as i32;
            }
            asks.push(self.ask(sequence));
        }
        let gpu = self.net.gpu;
        gpu.write(step.tokens.ptr(), &tokens)?;
        gpu.write(step.positions.ptr(), &positions)?;
        gpu.write(step.tables.ptr(), &tables)?;
        step.run(self.net, pages, rows)?;
        let draws = draw::draw(self.net, &step.logits, &asks)?;
        self.take(0, &draws);
        Ok(())
    }

    fn ask(&self, sequence: &Sequence) -> Ask {
        let request = &self.requests[sequence.request];
        Ask::new(&request.sampling, request.seed, sequence.tokens.len())
    }

    /// Gives every running sequence the page that its next position lies in; the youngest stop where none is left.
    fn make_room(&mut self) -> Result<()> {
        let mut row = 0;
        while row < self.active.len() {
            let sequence = &self.active[row];
            let positions = self.groups[sequence.group].prompt.len() + sequence.tokens.len();
            if sequence.table.len() >= pages_of(positions) {
                row += 1;
                continue;
            }
            match self.pages()?.take() {
                Some(page) => self.active[row].table.push(page),
                None => self.stop_youngest(row)?,
            }
        }
        Ok(())
    }

    /// Takes the pages of the youngest sequence back, of `row` itself where it is the youngest.
    fn stop_youngest(&mut self, row: usize) -> Result<()> {
        if self.active.len() == 1 && !self.give_back_prompts(usize::MAX)? {
            return Err(Error::new(Kind::Device, "the cache has no room for a single sequence")
                .hint("ask for shorter completions or free memory on the GPU"));
        }
        if self.active.len() > 1 {
            debug_assert!(row < self.active.len());
            let Some(mut youngest) = self.active.pop() else { return Ok(()) };
            self.release(&mut youngest)?;
            self.waiting.push_front(youngest);
        }
        Ok(())
    }

    /// Gives back the pages that belong to `sequence` alone.
    fn release(&mut self, sequence: &mut Sequence) -> Result<()> {
        let own = sequence.table.split_off(sequence.shared);
        sequence.table.clear();
        sequence.shared = 0;
        self.pages()?.give_back(own);
        Ok(())
    }

    /// Adds drawn tokens to the active sequences from `from` on, and retires the finished ones.
    fn take(&mut self, from: usize, draws: &[Draw]) {
        for (sequence, draw) in self.active[from..].iter_mut().zip(draws) {
            sequence.tokens.push(draw.token);
            sequence.log_probs.push(draw.log_prob);
        }
        self.drawn += draws.len();
        let mut running = Vec::with_capacity(self.active.len());
        for mut sequence in std::mem::take(&mut self.active) {
            let ended = sequence.tokens.last().is_some_and(|token| self.eos.contains(token));
            if !ended && sequence.tokens.len() < sequence.limit {
                running.push(sequence);
                continue;
            }
            let own = sequence.table.split_off(sequence.shared);
            let group = &mut self.groups[sequence.group];
            group.unfinished -= 1;
            let prompt = if group.unfinished == 0 { group.ready.take() } else { None };
            if let Some(pages) = &mut self.pages {
                pages.give_back(own);
                pages.give_back(prompt.map_or(Vec::new(), |(pages, _)| pages));
            }
            let finish = if ended { Finish::Eos } else { Finish::Length };
            let Sequence { request, tokens, log_probs, .. } = sequence;
            self.done[request] = Some(Completion { tokens, log_probs, finish });
        }
        self.active = running;
    }
}

/// The cache: as many pages as the requests can use, as far as the budget goes.
fn room(
    net: &Net<'_>,
    groups: &[Group<'_>],
    waiting: &VecDeque<Sequence>,
    longest: usize,
    kv_budget: u64,
) -> Result<Pages> {
    let prompts: usize = groups.iter().map(|g| pages_of(g.prompt.len())).sum();
    // The longest of those that can run at a time, each with the page that it copies.
    let mut own: Vec<usize> =
        waiting.iter().map(|s| pages_of(groups[s.group].prompt.len() % pages::SIZE + s.limit) + 1).collect();
    own.sort_unstable_by(|a, b| b.cmp(a));
    let wanted = prompts + own.iter().take(MAX_ACTIVE).sum::<usize>();
    let least = 2 * pages_of(longest) + 2;
    let bytes = page_bytes(net);
    let count = wanted.min((kv_budget / bytes as u64) as usize).max(least);
    Pages::new(net, count)
}
