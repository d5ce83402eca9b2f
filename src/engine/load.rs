//! Making an engine for a model.

use std::path::Path;

use super::cpu::{Budget, CpuEngine};
use super::cuda::device::{self, Device};
use super::cuda::{CudaEngine, Options};
use super::{Engine, Trainable};
use crate::Result;

/// What to load, and how.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// A folder in Hugging Face's layout.
    pub model: &'a Path,
    /// A folder in PEFT's layout.
    pub adapter: Option<&'a Path>,
    pub trainable: Trainable,
    /// CPU threads; 0: all that this process may use.
    pub threads: usize,
}

/// Loads the model on the device that this process was told to use ([`device::chosen`]).
///
/// # Errors
/// As [`load_on`].
pub fn load(what: &Load<'_>) -> Result<Box<dyn Engine>> {
    load_on(what, device::chosen()?)
}

/// Loads the model on `device`.
///
/// # Errors
/// As [`Device::resolve`], [`CpuEngine::load`] and [`CudaEngine::load`].
pub fn load_on(what: &Load<'_>, device: Device) -> Result<Box<dyn Engine>> {
    if let Some(ordinal) = device.resolve()? {
        let options = Options::from_env();
        return Ok(Box::new(CudaEngine::load(what.model, what.adapter, what.trainable, ordinal, options)?));
    }
    let threads = if what.threads == 0 {
        std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
    } else {
        what.threads
    };
    let budget = Budget::of_this_machine();
    Ok(Box::new(CpuEngine::load(what.model, what.adapter, what.trainable, threads, budget)?))
}

/// Bytes of memory that new work may take, from the kernel's own estimate and the control group's limit.
pub(super) fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let limit = number("/sys/fs/cgroup/memory.max");
    let used = number("/sys/fs/cgroup/memory.current").unwrap_or(0);
    let left = limit.map_or(u64::MAX, |limit| limit.saturating_sub(used));
    Some((kib << 10).min(left))
}
