//! From hidden states to log-probs and entropies and back, in pieces of the vocabulary's height.

use super::block::Net;
use super::gemm::Operand;
use super::gpu::{Buffer, Grid, args};
use super::phases::Phase;
use crate::Result;
use crate::engine::cpu::batch::Target;

/// Bytes of f32 logits that exist at a time.
const PIECE: usize = 256 << 20;

/// What one piece needs on the way back.
#[derive(Debug)]
struct Piece {
    at: Buffer,
    targets: Buffer,
    /// `float4` a row: log-sum-exp, entropy, log-prob.
    stats: Buffer,
    range: std::ops::Range<usize>,
}

/// The scored targets.
#[derive(Debug)]
pub struct Scored {
    pieces: Vec<Piece>,
    temperature: f32,
    /// (log-prob, entropy) a target.
    pub values: Vec<(f32, f32)>,
}

/// Rows of logits in a piece.
pub fn piece_rows(vocab: usize) -> usize {
    let rows = PIECE / (4 * vocab);
    // Whole tiles of the products.
    if rows > 128 { rows / 128 * 128 } else { rows.max(1) }
}

fn gathered(net: &Net<'_>, hidden: &Buffer, at: &Buffer, rows: usize) -> Result<Buffer> {
    let width = net.config.hidden_size;
    let out = net.gpu.alloc_act(rows * width)?;
    net.gpu.launch("gather", Grid::rows(rows, width), args![&out, hidden, at, width as i32])?;
    Ok(out)
}

/// f32 `[rows, vocab]` of normed hidden rows.
pub fn logits(net: &Net<'_>, rows: &Buffer, count: usize) -> Result<Buffer> {
    let out = net.gpu.alloc_floats(count * net.config.vocab_size)?;
    logits_into(net, rows, count, &out)?;
    Ok(out)
}

/// As [`logits`], into `out`.
pub fn logits_into(net: &Net<'_>, rows: &Buffer, count: usize, out: &Buffer) -> Result<()> {
    let (width, vocab) = (net.config.hidden_size, net.config.vocab_size);
    let head = net.weights.head().operand(net.parameters);
    let (x, y) = (Operand::act(rows.ptr(), width), Operand::f32(out.ptr(), vocab));
    net.gpu.gemm([count, vocab, width], 1.0, x, head.t(), 0.0, y)
}

/// Scores every target under softmax(logits / temperature). `hidden` `[tokens, hidden]` is normed.
pub fn score(net: &Net<'_>, hidden: &Buffer, targets: &[Target], temperature: f32) -> Result<Scored> {
    let (gpu, vocab) = (net.gpu, net.config.vocab_size);
    gpu.phase(Phase::Head)?;
    let mut pieces = Vec::new();
    let mut start = 0;
    for chunk in targets.chunks(piece_rows(vocab)) {
        let count = chunk.len();
        let at = gpu.upload(&chunk.iter().map(|t| t.at as i32).collect::<Vec<_>>())?;
        let ids = gpu.upload(&chunk.iter().map(|t| t.token as i32).collect::<Vec<_>>())?;
        let logits = logits(net, &gathered(net, hidden, &at, count)?, count)?;
        let stats = gpu.alloc_floats(4 * count)?;
        let args = args![&stats, &logits, &ids, vocab as i32, 1.0 / temperature];
        gpu.launch("score", Grid::new([count, 1, 1], 512), args)?;
        pieces.push(Piece { at, targets: ids, stats, range: start..start + count });
        start += count;
    }
    let mut values = Vec::with_capacity(targets.len());
    for piece in &pieces {
        let stats: Vec<[f32; 4]> = gpu.download(piece.stats.ptr(), piece.range.len())?;
        values.extend(stats.iter().map(|s| (s[2], s[1])));
    }
    gpu.phase(Phase::Outside)?;
    Ok(Scored { pieces, temperature, values })
}

/// The gradient of the normed hidden states `[tokens, hidden]`; `slopes` has (d_log_prob, d_entropy) per target.
pub fn backward(
    net: &Net<'_>,
    hidden: &Buffer,
    tokens: usize,
    targets: &[Target],
    scored: &Scored,
    slopes: &[(f32, f32)],
) -> Result<Buffer> {
    let (gpu, vocab, width) = (net.gpu, net.config.vocab_size, net.config.hidden_size);
    let head = net.weights.head();
    gpu.phase(Phase::Head)?;
    let d_rows = gpu.zeros(gpu.act(targets.len() * width))?;
    for piece in &scored.pieces {
        let own = &slopes[piece.range.clone()];
        // Masked tokens cost nothing where a whole piece of them stands together.
        if own.iter().all(|&s| s == (0.0, 0.0)) {
            continue;
        }
        let count = own.len();
        let own = gpu.upload(&own.iter().map(|&(a, b)| [a, b]).collect::<Vec<_>>())?;
        let inputs = gathered(net, hidden, &piece.at, count)?;
        let logits = logits(net, &inputs, count)?;
        let d_logits = gpu.alloc_act(count * vocab)?;
        gpu.launch(
            "score_backward",
            Grid::new([count, 1, 1], 512),
            args![&d_logits, &logits, &piece.stats, &piece.targets, &own, vocab as i32, 1.0 / scored.temperature],
        )?;
        drop(logits);
        let d = Operand::act(d_logits.ptr(), vocab);
        if let Some(into) = head.gradient(net.parameters) {
            let x = Operand::act(inputs.ptr(), width);
            gpu.gemm([vocab, width, count], 1.0, d.t(), x, 1.0, Operand::f32(into, width))?;
        }
        let out = Operand::act(d_rows.at(gpu.act(piece.range.start * width)), width);
        gpu.gemm([count, width, vocab], 1.0, d, head.operand(net.parameters), 0.0, out)?;
    }
    // Several targets may stand at one token: the end of a shared prompt.
    let mut lists: Vec<Vec<i32>> = vec![Vec::new(); tokens];
    for (i, target) in targets.iter().enumerate() {
        lists[target.at].push(i as i32);
    }
    let mut offsets = Vec::with_capacity(tokens + 1);
    offsets.push(0i32);
    let mut order = Vec::with_capacity(targets.len());
    for list in lists {
        order.extend(list);
        offsets.push(order.len() as i32);
    }
    let (offsets, order) = (gpu.upload(&offsets)?, gpu.upload(&order)?);
    let d_hidden = gpu.alloc_act(tokens * width)?;
    gpu.launch("scatter", Grid::rows(tokens, width), args![&d_hidden, &d_rows, &offsets, &order, width as i32])?;
    Ok(d_hidden)
}
