//! Generation with continuous batching over a paged cache.
//!
//! Requests of one prompt share its prefill and the full pages of its keys and values; the page in which it ends is
//! copied for each. A finished sequence's place is refilled at once. When no page is left, the youngest sequence gives
//! its pages back and is computed again later.

mod attend;
mod draw;
mod pages;
mod prefill;
mod rows;
mod step;

use std::collections::{HashMap, VecDeque};

use draw::Ask;
use pages::{Pages, page_bytes, pages_of};
use rows::{RowState, Rows};

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
    /// Its last token is on its way.
    idle: bool,
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
    rows: Option<Rows>,
    pages: Option<Pages>,
    groups: Vec<Group<'a>>,
    waiting: VecDeque<Sequence>,
    /// By row of the step, from the oldest to the youngest; `None` where one has finished.
    active: Vec<Option<Sequence>>,
    /// Whether the rows have to be set anew.
    moved: bool,
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
            waiting.push_back(Sequence { request, group, limit, tokens, log_probs, table, shared: 0, idle: false });
        }
        let (mut pages, mut rows) = (None, None);
        if !waiting.is_empty() {
            let longest = waiting.iter().map(|s| groups[s.group].prompt.len() + s.limit).max().unwrap_or(0);
            pages = Some(room(net, &groups, &waiting, longest, kv_budget)?);
            rows = Some(Rows::new(net, waiting.len().min(MAX_ACTIVE), pages_of(longest))?);
        }
        let (active, moved, drawn) = (Vec::new(), false, 0);
        Ok(Self { net, requests, eos, rows, pages, groups, waiting, active, moved, done, drawn })
    }

    fn finished(&self) -> usize {
        self.done.iter().flatten().count()
    }

    fn pages(&mut self) -> Result<&mut Pages> {
        self.pages.as_mut().ok_or_else(|| Error::failed("generation has no cache"))
    }

    fn rows(&mut self) -> Result<&mut Rows> {
        self.rows.as_mut().ok_or_else(|| Error::failed("generation has no rows"))
    }

    fn live(&self) -> usize {
        self.active.iter().flatten().count()
    }

    /// Pages that a waiting sequence starts with, its prompt's included where `known` is false.
    fn need(&self, sequence: &Sequence, known: bool) -> usize {
        let prompt = self.groups[sequence.group].prompt.len();
        match (sequence.tokens.is_empty(), known) {
            (false, _) => pages_of(prompt + sequence.tokens.len() + 1),
            (true, true) => 1,
            (true, false) => pages_of(prompt) + 1,
        }
    }

    /// Whether the next waiting sequence has room. A page for each running one stays free, so that they do not have to
    /// stop at once.
    fn has_room(&self, running: usize, prompts: &[usize]) -> bool {
        let (Some(next), Some(pages), Some(rows)) = (self.waiting.front(), &self.pages, &self.rows) else {
            return false;
        };
        let known = self.groups[next.group].ready.is_some() || prompts.contains(&next.group);
        running < rows.capacity() && pages.free() >= self.need(next, known) + running
    }

    /// Starts waiting sequences while there is room: their prompts are computed and their first tokens drawn.
    fn start(&mut self) -> Result<()> {
        let live = self.live();
        if self.waiting.is_empty() || (live > 0 && !self.has_room(live, &[])) {
            return Ok(());
        }
        self.drain()?;
        let live = self.live();
        let (mut fresh, mut prompts, mut tokens) = (Vec::new(), Vec::new(), 0);
        while tokens < PREFILL {
            let Some(next) = self.waiting.front() else { break };
            let group = next.group;
            let known = self.groups[group].ready.is_some() || prompts.contains(&group);
            let (need, resumed) = (self.need(next, known), !next.tokens.is_empty());
            if !self.has_room(live + fresh.len(), &prompts) {
                if live + fresh.len() > 0 {
                    break;
                }
                if self.pages()?.free() < need && self.give_back_prompts(group)? {
                    continue;
                }
            }
            let mut own = self.pages()?.take_many(need).ok_or_else(no_room)?;
            let Some(mut sequence) = self.waiting.pop_front() else { break };
            let prompt = self.groups[group].prompt.len();
            if resumed {
                tokens += prompt + sequence.tokens.len();
                sequence.shared = 0;
            } else if !known {
                tokens += prompt;
                let last = own.split_off(own.len() - 1);
                let logits = self.net.gpu.alloc_floats(self.net.config.vocab_size)?;
                self.groups[group].ready = Some((std::mem::replace(&mut own, last), logits));
                prompts.push(group);
            }
            sequence.table = own;
            fresh.push(sequence);
        }
        if fresh.is_empty() {
            return Ok(());
        }
        let draws = self.prefill(&prompts, &mut fresh)?;
        self.active.retain(Option::is_some);
        self.moved = true;
        for (sequence, draw) in fresh.into_iter().zip(draws) {
            self.active.push(Some(sequence));
            self.take(self.active.len() - 1, draw)?;
        }
        Ok(())
    }

    /// Frees the pages of prompts that nobody uses now, except `keep`'s; whether there were any.
    fn give_back_prompts(&mut self, keep: usize) -> Result<bool> {
        let mut freed = Vec::new();
        for (i, group) in self.groups.iter_mut().enumerate() {
            let used = self.active.iter().flatten().any(|s| s.group == i && s.shared > 0);
            if i != keep
                && !used
                && let Some((pages, _)) = group.ready.take()
            {
                freed.extend(pages);
            }
        }
        let any = !freed.is_empty();
        self.pages()?.give_back(freed);
        Ok(any)
    }

    /// Launches a step and takes the results of the one before.
    fn advance(&mut self) -> Result<()> {
        self.make_room()?;
        self.set_rows()?;
        let ahead = self.rows()?.in_flight();
        let (Some(rows), Some(pages)) = (&mut self.rows, &self.pages) else { return Ok(()) };
        let mut running = 0;
        for (row, sequence) in self.active.iter_mut().enumerate() {
            let Some(sequence) = sequence else { continue };
            if sequence.tokens.len() + ahead >= sequence.limit && !sequence.idle {
                sequence.idle = true;
                rows.stop(self.net, row)?;
            }
            running += usize::from(!sequence.idle);
        }
        if running > 0 {
            rows.launch(self.net, pages)?;
        }
        let flying = rows.in_flight();
        if flying > 1 || (running == 0 && flying > 0) {
            self.land()?;
        }
        if self.live() == 0 {
            self.drain()?;
            self.active.clear();
        }
        Ok(())
    }

    /// Sets the rows anew where sequences came, went to wait, or so many finished that fewer rows will do.
    fn set_rows(&mut self) -> Result<()> {
        let fewer = rows::bucket(self.live()) < self.rows()?.count();
        if !(self.moved || fewer) {
            return Ok(());
        }
        self.drain()?;
        self.active.retain(Option::is_some);
        let mut states = Vec::with_capacity(self.active.len());
        for sequence in self.active.iter().flatten() {
            let prompt = self.groups[sequence.group].prompt.len();
            states.push(RowState {
                token: sequence.tokens.last().copied().unwrap_or(0),
                position: prompt + sequence.tokens.len() - 1,
                table: sequence.table.clone(),
                ask: self.ask(sequence),
            });
        }
        self.moved = false;
        let net = self.net;
        self.rows()?.set(net, &states)
    }

    /// Takes the results of every step on its way.
    fn drain(&mut self) -> Result<()> {
        while self.rows()?.in_flight() > 0 {
            self.land()?;
        }
        Ok(())
    }

    fn land(&mut self) -> Result<()> {
        let drawn = self.rows()?.land()?;
        for row in 0..self.active.len() {
            if self.active[row].is_some() {
                self.take(row, rows::drawn(&drawn, row)?)?;
            }
        }
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
            let ahead = self.rows()?.in_flight();
            let Some(sequence) = &self.active[row] else {
                row += 1;
                continue;
            };
            // The step to come feeds the token at the last of these positions.
            let known = (sequence.tokens.len() + ahead).min(sequence.limit);
            let positions = self.groups[sequence.group].prompt.len() + known;
            let at = sequence.table.len();
            if at >= pages_of(positions) {
                row += 1;
                continue;
            }
            match self.pages()?.take() {
                Some(page) => {
                    let net = self.net;
                    if !self.moved {
                        self.rows()?.set_page(net, row, at, page)?;
                    }
                    if let Some(sequence) = &mut self.active[row] {
                        sequence.table.push(page);
                    }
                }
                // What is on its way may end sequences.
                None if ahead > 0 => self.drain()?,
                None => self.stop_youngest()?,
            }
        }
        Ok(())
    }

    /// Lets the youngest sequence wait and takes its pages back.
    fn stop_youngest(&mut self) -> Result<()> {
        if self.live() <= 1 {
            return if self.give_back_prompts(usize::MAX)? { Ok(()) } else { Err(no_room()) };
        }
        self.active.retain(Option::is_some);
        self.moved = true;
        let Some(mut youngest) = self.active.pop().flatten() else { return Ok(()) };
        let own = youngest.table.split_off(youngest.shared);
        youngest.table.clear();
        (youngest.shared, youngest.idle) = (0, false);
        self.pages()?.give_back(own);
        self.waiting.push_front(youngest);
        Ok(())
    }

    /// Adds a drawn token to a row's sequence, and retires it where it has finished.
    fn take(&mut self, row: usize, draw: Draw) -> Result<()> {
        let Some(sequence) = &mut self.active[row] else { return Ok(()) };
        sequence.tokens.push(draw.token);
        sequence.log_probs.push(draw.log_prob);
        self.drawn += 1;
        let ended = self.eos.contains(&draw.token);
        if !ended && sequence.tokens.len() < sequence.limit {
            return Ok(());
        }
        let Some(mut sequence) = self.active[row].take() else { return Ok(()) };
        if !(sequence.idle || self.moved) {
            let net = self.net;
            self.rows()?.stop(net, row)?;
        }
        let own = sequence.table.split_off(sequence.shared);
        let group = &mut self.groups[sequence.group];
        group.unfinished -= 1;
        let prompt = if group.unfinished == 0 { group.ready.take() } else { None };
        let pages = self.pages()?;
        pages.give_back(own);
        pages.give_back(prompt.map_or(Vec::new(), |(pages, _)| pages));
        let finish = if ended { Finish::Eos } else { Finish::Length };
        let Sequence { request, tokens, log_probs, .. } = sequence;
        self.done[request] = Some(Completion { tokens, log_probs, finish });
        Ok(())
    }
}

fn no_room() -> Error {
    Error::new(Kind::Device, "the cache has no room for a single sequence")
        .hint("ask for shorter completions or free memory on the GPU")
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
