//! Which device a process computes on.

use std::str::FromStr;
use std::sync::OnceLock;

use cudarc::driver::{CudaContext, result};

use super::gpu::device_error;
use super::library::Library;
use crate::error::Kind;
use crate::{Error, Result};

/// `auto`, `cpu` or `cuda:N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The GPU with most free memory among those that CUDA_VISIBLE_DEVICES leaves; the CPU where there is none.
    #[default]
    Auto,
    Cpu,
    /// Counted within CUDA_VISIBLE_DEVICES.
    Cuda(usize),
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => {
                let number = text.strip_prefix("cuda:").and_then(|n| n.parse().ok());
                number.map(Self::Cuda).ok_or_else(|| {
                    Error::usage(format!("`{text}` is no device")).hint("one of `auto`, `cpu`, `cuda:0`, `cuda:1`, ...")
                })
            }
        }
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

/// One visible GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub ordinal: usize,
    pub name: String,
    pub free: u64,
    pub total: u64,
}

/// The visible GPUs; none where there is no driver.
///
/// # Errors
/// Where the driver is there but does not answer.
pub fn gpus() -> Result<Vec<Found>> {
    if Library::Driver.find().is_none() || result::init().is_err() {
        return Ok(Vec::new());
    }
    let count = CudaContext::device_count().map_err(|e| device_error("count GPUs", e))?;
    let mut found = Vec::new();
    for ordinal in 0..count.max(0) as usize {
        let context = CudaContext::new(ordinal).map_err(|e| device_error(&format!("open GPU {ordinal}"), e))?;
        let name = context.name().map_err(|e| device_error("ask a GPU for its name", e))?;
        let (free, total) = context.mem_get_info().map_err(|e| device_error("ask for free memory", e))?;
        found.push(Found { ordinal, name, free: free as u64, total: total as u64 });
    }
    Ok(found)
}

static CHOSEN: OnceLock<Device> = OnceLock::new();

/// Sets the device of this process, once; later calls change nothing.
pub fn choose(device: Device) {
    let _ = CHOSEN.set(device);
}

/// The device that was chosen, or what `QERL_DEVICE` names, or `auto`.
///
/// # Errors
/// Where the variable names no device.
pub fn chosen() -> Result<Device> {
    CHOSEN.get().copied().map_or_else(from_env, Ok)
}

fn from_env() -> Result<Device> {
    match std::env::var("QERL_DEVICE") {
        Ok(text) if !text.is_empty() => text.parse::<Device>().map_err(|e| e.within("QERL_DEVICE")),
        _ => Ok(Device::Auto),
    }
}

impl Device {
    /// The GPU's number, or `None` for the CPU.
    ///
    /// # Errors
    /// Where a named GPU is not there or is used up by others.
    pub fn resolve(self) -> Result<Option<usize>> {
        match self {
            Self::Cpu => Ok(None),
            Self::Auto => {
                // A machine whose driver is broken, or without the compiler of kernels, computes on its CPU.
                let usable = Library::Driver.find().is_some() && Library::Nvrtc.find().is_some();
                let all = if usable { gpus().unwrap_or_default() } else { Vec::new() };
                Ok(all.iter().filter(|gpu| !is_busy(gpu)).max_by_key(|gpu| gpu.free).map(|gpu| gpu.ordinal))
            }
            Self::Cuda(ordinal) => {
                Library::Driver.require()?;
                Library::Nvrtc.require()?;
                let all = gpus()?;
                let gpu = all.iter().find(|gpu| gpu.ordinal == ordinal).ok_or_else(|| {
                    Error::new(Kind::Device, format!("there is no GPU {ordinal}; {} are visible", all.len()))
                        .hint("`qerl doctor` lists them; CUDA_VISIBLE_DEVICES decides which are visible")
                })?;
                if is_busy(gpu) {
                    return Err(busy(gpu));
                }
                Ok(Some(ordinal))
            }
        }
    }

    /// `cpu` or `cuda`: what a result's fingerprint says.
    ///
    /// # Errors
    /// As [`Device::resolve`].
    pub fn backend(self) -> Result<&'static str> {
        Ok(if self.resolve()?.is_some() { "cuda" } else { "cpu" })
    }
}

/// Others hold more than nine tenths of the memory.
fn is_busy(gpu: &Found) -> bool {
    gpu.free < gpu.total / 10
}

fn busy(gpu: &Found) -> Error {
    let who = users();
    let who = if who.is_empty() { "another process".to_owned() } else { who.join(", ") };
    let (free, total) = (gpu.free >> 20, gpu.total >> 20);
    Error::new(Kind::Device, format!("GPU {} is in use by {who}: {free} of {total} MiB are free", gpu.ordinal))
        .hint("wait until it is done, choose another GPU with --device cuda:N, or --device cpu")
}

/// Processes that nvidia-smi sees on GPUs, `name (pid)`; empty where it cannot be asked.
fn users() -> Vec<String> {
    let query = ["--query-compute-apps=pid,process_name", "--format=csv,noheader"];
    let Ok(output) = std::process::Command::new("nvidia-smi").args(query).output() else { return Vec::new() };
    let text = String::from_utf8_lossy(&output.stdout);
    let own = std::process::id().to_string();
    text.lines()
        .filter_map(|line| line.split_once(','))
        .map(|(pid, name)| (pid.trim(), name.trim()))
        .filter(|(pid, _)| *pid != own)
        .map(|(pid, name)| format!("{name} ({pid})"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_parsed_and_printed() {
        for text in ["auto", "cpu", "cuda:0", "cuda:3"] {
            assert_eq!(text.parse::<Device>().unwrap().to_string(), text);
        }
        assert_eq!("cuda".parse::<Device>().unwrap(), Device::Cuda(0));
        for text in ["gpu", "cuda:", "cuda:-1", "cuda:x", ""] {
            assert!(text.parse::<Device>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_cpu_is_always_there() {
        assert_eq!(Device::Cpu.resolve().unwrap(), None);
        assert_eq!(Device::Cpu.backend().unwrap(), "cpu");
    }
}
