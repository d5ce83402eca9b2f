//! Generation with continuous batching.
//!
//! Requests of one prompt share its prefill and its keys and values. Each pass feeds one token of every running
//! sequence and a piece of the prompts that wait; finished sequences make room at once. When the KV cache outgrows
//! its budget the youngest sequence gives its memory back and is computed again later: by the kernels' chain rule
//! that gives the same bits.

mod pass;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use pass::{Caches, Item, Pass, position_bytes};

use super::batch::check_tokens;
use super::block::Net;
use super::kernels::Parts;
use crate::control::Cancel;
use crate::engine::sampling::{self, Draw};
use crate::engine::{Completion, Finish, Request};
use crate::{Error, Result};

/// Sequences that decode side by side: more make a product no cheaper per row.
const MAX_ACTIVE: usize = 64;
/// Tokens of prompts, and of sequences that are computed again, that a pass takes beside the running ones.
const PREFILL: usize = 512;
/// Positions beyond its present ones that a sequence is given room for when it starts.
const HEADROOM: usize = 64;

/// Requests of one prompt.
struct Group<'a> {
    prompt: &'a [u32],
    progress: Progress,
    unfinished: usize,
}

/// How far a prompt has come.
enum Progress {
    Waiting,
    /// Keys and values of so many of its tokens.
    Filling(Caches, usize),
    /// All of them, and the logits after the last one.
    Ready(Arc<Caches>, Vec<f32>),
}

impl Group<'_> {
    fn bytes(&self) -> u64 {
        match &self.progress {
            Progress::Waiting => 0,
            Progress::Filling(caches, _) => caches.bytes(),
            Progress::Ready(caches, logits) => caches.bytes() + 4 * logits.len() as u64,
        }
    }
}

/// A request on its way.
struct Sequence {
    request: usize,
    group: usize,
    limit: usize,
    tokens: Vec<u32>,
    log_probs: Vec<f32>,
    /// Keys and values of the first `fed` tokens.
    own: Caches,
    fed: usize,
}

/// Whose tokens an item of a pass feeds: an index into the groups, or into the active sequences.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Group(usize),
    Sequence(usize),
}

/// The completions, and the most bytes that keys and values took.
pub(super) struct Outcome {
    pub completions: Vec<Completion>,
    pub kv_peak: u64,
}

/// See [`crate::engine::Engine::generate`]. `kv_budget` in bytes; one sequence is run whatever it takes.
pub(super) fn generate(
    net: &Net<'_>,
    requests: &[Request],
    eos: &[u32],
    kv_budget: u64,
    cancel: &Cancel,
    tick: &mut dyn FnMut(usize, usize),
) -> Result<Outcome> {
    watched(net, requests, eos, kv_budget, cancel, &mut |run, new| {
        tick(run.finished(), new);
        Ok(())
    })
}

/// See [`crate::engine::Engine::stream`]; the outcome holds one completion.
pub(super) fn stream(
    net: &Net<'_>,
    request: &Request,
    eos: &[u32],
    kv_budget: u64,
    cancel: &Cancel,
    token: &mut dyn FnMut(u32) -> Result<()>,
) -> Result<Outcome> {
    let mut given = 0;
    watched(net, std::slice::from_ref(request), eos, kv_budget, cancel, &mut |run, _| {
        let tokens = run.first_tokens();
        tokens.iter().skip(given).try_for_each(|id| token(*id))?;
        given = tokens.len();
        Ok(())
    })
}

/// `each(run, new_tokens)` is called after every pass.
fn watched(
    net: &Net<'_>,
    requests: &[Request],
    eos: &[u32],
    kv_budget: u64,
    cancel: &Cancel,
    each: &mut dyn FnMut(&Run<'_>, usize) -> Result<()>,
) -> Result<Outcome> {
    let mut run = Run::new(net, requests, eos, kv_budget)?;
    let mut pass = Pass::default();
    while !(run.waiting.is_empty() && run.active.is_empty()) {
        cancel.check()?;
        let before = run.drawn;
        run.admit();
        run.draw_first()?;
        let mut items = run.plan();
        if !items.is_empty() {
            let logits = pass.run(net, &mut items);
            run.take(items, logits)?;
        }
        run.shrink();
        each(&run, run.drawn - before)?;
    }
    let lost = || Error::failed("a request was lost");
    let completions = run.done.into_iter().map(|done| done.ok_or_else(lost)).collect::<Result<_>>()?;
    Ok(Outcome { completions, kv_peak: run.kv_peak })
}

struct Run<'a> {
    net: &'a Net<'a>,
    requests: &'a [Request],
    eos: &'a [u32],
    kv_budget: u64,
    kv_peak: u64,
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
                groups.push(Group { prompt: &ask.prompt, progress: Progress::Waiting, unfinished: 0 });
            }
            groups[group].unfinished += 1;
            let own = Caches::default();
            waiting.push_back(Sequence { request, group, limit, tokens: vec![], log_probs: vec![], own, fed: 0 });
        }
        Ok(Self { net, requests, eos, kv_budget, kv_peak: 0, groups, waiting, active: Vec::new(), done, drawn: 0 })
    }

    fn finished(&self) -> usize {
        self.done.iter().flatten().count()
    }

    /// What the first request has drawn so far.
    fn first_tokens(&self) -> &[u32] {
        if let Some(Some(done)) = self.done.first() {
            return &done.tokens;
        }
        let mut sequences = self.active.iter().chain(&self.waiting);
        sequences.find(|sequence| sequence.request == 0).map_or(&[], |sequence| &sequence.tokens)
    }

    fn kv_bytes(&self) -> u64 {
        let own: u64 = self.active.iter().map(|sequence| sequence.own.bytes()).sum();
        own + self.groups.iter().map(Group::bytes).sum::<u64>()
    }

    /// Starts waiting sequences while there is room; prompts of a group are counted once.
    fn admit(&mut self) {
        let position = position_bytes(self.net.config);
        let mut used = self.kv_bytes();
        while self.active.len() < MAX_ACTIVE {
            let Some(next) = self.waiting.front() else { break };
            let group = &self.groups[next.group];
            let prompt = if matches!(group.progress, Progress::Waiting) { group.prompt.len() } else { 0 };
            let room = next.limit.min(next.tokens.len() + HEADROOM);
            let bytes = (prompt + room) as u64 * position;
            if used + bytes > self.kv_budget && !self.active.is_empty() {
                break;
            }
            used += bytes;
            let Some(mut next) = self.waiting.pop_front() else { break };
            if let progress @ Progress::Waiting = &mut self.groups[next.group].progress {
                *progress = Progress::Filling(Caches::new(self.net.config), 0);
            }
            next.own = Caches::new(self.net.config);
            self.active.push(next);
        }
    }

    /// Draws the first token of sequences whose prompt is ready.
    fn draw_first(&mut self) -> Result<()> {
        let mut owners = Vec::new();
        let mut logits = Vec::new();
        for (i, sequence) in self.active.iter().enumerate().filter(|(_, s)| s.tokens.is_empty()) {
            if let Progress::Ready(_, last) = &self.groups[sequence.group].progress {
                owners.push((i, owners.len()));
                logits.extend_from_slice(last);
            }
        }
        self.draw(&owners, &mut logits)
    }

    /// What the next pass feeds: a token of each running sequence first, then pieces of prompts.
    fn plan(&mut self) -> Vec<Item<Owner>> {
        let mut items = Vec::new();
        let mut room = PREFILL;
        let mut longer = Vec::new();
        for (i, sequence) in self.active.iter_mut().enumerate() {
            let Progress::Ready(prefix, _) = &self.groups[sequence.group].progress else { continue };
            let behind = sequence.tokens.len() - sequence.fed;
            let count = if behind == 1 { 1 } else { behind.min(room) };
            if count == 0 {
                continue;
            }
            if behind > 1 {
                room -= count;
            }
            let item = Item {
                owner: Owner::Sequence(i),
                caches: std::mem::take(&mut sequence.own),
                prefix: Some(Arc::clone(prefix)),
                tokens: sequence.tokens[sequence.fed..sequence.fed + count].to_vec(),
                start: self.groups[sequence.group].prompt.len() + sequence.fed,
                logits: count == behind,
            };
            if count == 1 { items.push(item) } else { longer.push(item) }
        }
        for (i, group) in self.groups.iter_mut().enumerate() {
            let Progress::Filling(caches, filled) = &mut group.progress else { continue };
            let count = (group.prompt.len() - *filled).min(room);
            if count == 0 {
                break;
            }
            room -= count;
            longer.push(Item {
                owner: Owner::Group(i),
                caches: std::mem::take(caches),
                prefix: None,
                tokens: group.prompt[*filled..*filled + count].to_vec(),
                start: *filled,
                logits: *filled + count == group.prompt.len(),
            });
        }
        items.append(&mut longer);
        items
    }

    /// Gives caches back to their owners and draws where logits came.
    fn take(&mut self, items: Vec<Item<Owner>>, logits: &mut [f32]) -> Result<()> {
        let vocab = self.net.config.vocab_size;
        let mut rows = (0..logits.len() / vocab).map(|row| (row, &logits[row * vocab..][..vocab]));
        let mut owners = Vec::new();
        for item in items {
            let row = if item.logits { rows.next() } else { None };
            match item.owner {
                Owner::Sequence(i) => {
                    self.active[i].own = item.caches;
                    self.active[i].fed += item.tokens.len();
                    if let Some((row, _)) = row {
                        owners.push((i, row));
                    }
                }
                Owner::Group(i) => {
                    self.groups[i].progress = match row {
                        Some((_, row)) => Progress::Ready(Arc::new(item.caches), row.to_vec()),
                        None => Progress::Filling(item.caches, item.start + item.tokens.len()),
                    };
                }
            }
        }
        self.draw(&owners, logits)
    }

    /// Draws a token for each of `owners` (active sequence, its own row of the logits), and retires the finished.
    fn draw(&mut self, owners: &[(usize, usize)], logits: &mut [f32]) -> Result<()> {
        let vocab = self.net.config.vocab_size;
        let mut draws: Vec<Option<Draw>> = vec![None; owners.len()];
        let (rows, out) = (Parts::new(logits), Parts::new(&mut draws));
        let (active, requests) = (&self.active, self.requests);
        self.net.pool.for_each(owners.len(), &|i| {
            let (sequence, row) = (&active[owners[i].0], owners[i].1);
            let ask = &requests[sequence.request];
            // SAFETY: one row and one element per task.
            let (row, out) = unsafe { (rows.slice(row * vocab, vocab), out.slice(i, 1)) };
            let place = sequence.tokens.len() as u64;
            out[0] = sampling::draw(row, &ask.sampling, ask.seed, place, &mut sampling::Scratch::default());
        });
        for (&(i, _), draw) in owners.iter().zip(draws) {
            let Some(draw) = draw else {
                return Err(Error::failed("the model's logits are not finite").hint(
                    "the weights or the adapter are damaged, or training has diverged: lower the learning rate",
                ));
            };
            self.active[i].tokens.push(draw.token);
            self.active[i].log_probs.push(draw.log_prob);
            self.drawn += 1;
        }
        self.retire();
        Ok(())
    }

    fn retire(&mut self) {
        let mut running = Vec::with_capacity(self.active.len());
        for sequence in std::mem::take(&mut self.active) {
            let ended = sequence.tokens.last().is_some_and(|token| self.eos.contains(token));
            if !ended && sequence.tokens.len() < sequence.limit {
                running.push(sequence);
                continue;
            }
            let finish = if ended { Finish::Eos } else { Finish::Length };
            let Sequence { request, group, tokens, log_probs, .. } = sequence;
            self.done[request] = Some(Completion { tokens, log_probs, finish });
            let group = &mut self.groups[group];
            group.unfinished -= 1;
            if group.unfinished == 0 {
                group.progress = Progress::Waiting;
            }
        }
        self.active = running;
    }

    /// Takes memory back from the youngest sequences while there is too little.
    fn shrink(&mut self) {
        let mut used = self.kv_bytes();
        self.kv_peak = self.kv_peak.max(used);
        while used > self.kv_budget && self.active.len() > 1 {
            let Some(mut youngest) = self.active.pop() else { break };
            youngest.own = Caches::default();
            youngest.fed = 0;
            self.waiting.push_front(youngest);
            used = self.kv_bytes();
        }
    }
}
