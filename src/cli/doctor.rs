//! `qerl doctor`: what this machine offers and what is missing.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::out::write as out;
use crate::engine::cuda::library::Library;
use crate::engine::cuda::{compile, device};
use crate::hub::{Hub, HubConfig, cache_folder, free_bytes};
use crate::plan::bytes;
use crate::run::machine;
use crate::store::{Store, disk_usage};
use crate::{Error, Result};

/// Show devices, libraries, caches and free space
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Compile every CUDA kernel for this chip (sm_80, sm_90a, sm_100a, sm_120a; `all` for these) and say how large the
    /// code is; needs NVRTC, but no GPU
    #[arg(long, value_name = "CHIP", conflicts_with = "json")]
    compile_kernels: Option<String>,
}

pub fn run(args: &Args) -> Result<()> {
    if let Some(target) = &args.compile_kernels {
        let targets = if target == "all" { compile::TARGETS.to_vec() } else { vec![target.as_str()] };
        let mut lines = Vec::new();
        for target in targets {
            lines.extend(compile::compile_all(target)?);
        }
        return out(&format!("{}\n", lines.join("\n")));
    }
    let report = report()?;
    if args.json {
        let text =
            serde_json::to_string_pretty(&report).map_err(|e| Error::failed("cannot write JSON").caused_by(e))?;
        return out(&format!("{text}\n"));
    }
    out(&to_text(&report))
}

fn report() -> Result<Value> {
    let store = Store::from_env()?;
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let info = rustix::system::sysinfo();
    let unit = u64::from(info.mem_unit.max(1));
    Ok(json!({
        "qerl": env!("CARGO_PKG_VERSION"),
        "cpu": {"model": machine::cpu_model(), "threads": machine::threads(), "features": cpu_features()},
        "memory": {"total": info.totalram as u64 * unit, "available": available_memory()},
        "store": folder(&store.root),
        "hub_cache": cache_folder().map_or(Value::Null, |path| folder(&path)),
        "hub": hub(),
        "environment": {
            // Only whether they are set: a value may be a secret or hold one.
            "HF_ENDPOINT": set("HF_ENDPOINT"), "HF_TOKEN": set("HF_TOKEN"), "HF_HOME": set("HF_HOME"),
            "QERL_HOME": set("QERL_HOME"),
        },
        "cuda": cuda(),
        "device": device(),
    }))
}

/// What `--device auto` means here.
fn device() -> Value {
    match device::chosen().and_then(device::Device::resolve) {
        Ok(Some(ordinal)) => json!(format!("cuda:{ordinal}")),
        Ok(None) => json!("cpu"),
        Err(error) => json!(error.to_string()),
    }
}

/// Where models come from. Of the token only that there is one.
fn hub() -> Value {
    match HubConfig::from_env().and_then(Hub::new) {
        Ok(hub) => {
            let config = hub.config();
            json!({
                // Without a user name or query: such an endpoint is an error.
                "endpoint": config.endpoint, "token": config.token.is_some(), "offline": config.offline,
                "certificates": config.certificates,
            })
        }
        Err(error) => json!({"error": error.to_string(), "hint": error.hint_text()}),
    }
}

fn folder(path: &PathBuf) -> Value {
    json!({
        "path": path,
        "exists": path.is_dir(),
        "bytes": disk_usage(path).ok(),
        "free": free_bytes(path).ok(),
        "writable": writable(path),
    })
}

/// Whether the folder, or the one in which it would be made, can be written.
fn writable(path: &Path) -> bool {
    let mut place = path;
    while !place.exists() {
        match place.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => place = parent,
            _ => return false,
        }
    }
    place.is_dir() && rustix::fs::access(place, rustix::fs::Access::WRITE_OK).is_ok()
}

fn cpu_features() -> Vec<&'static str> {
    let mut found = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! detect {
            ($($name:tt),*) => { $( if std::arch::is_x86_feature_detected!($name) { found.push($name); } )* };
        }
        detect!("sse4.2", "avx", "f16c", "fma", "avx2", "avxvnni", "avx512f", "avx512bw", "avx512vnni", "avx512bf16");
    }
    #[cfg(target_arch = "aarch64")]
    {
        macro_rules! detect {
            ($($name:tt),*) => { $( if std::arch::is_aarch64_feature_detected!($name) { found.push($name); } )* };
        }
        detect!("neon", "fp16", "dotprod", "i8mm", "bf16", "sve");
    }
    found
}

fn available_memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Which CUDA libraries and GPUs are found, and how to get what is not.
fn cuda() -> Value {
    let mut libraries = serde_json::Map::new();
    let mut hints = Vec::new();
    for library in Library::ALL {
        let path = library.find();
        if path.is_none() {
            hints.push(library.hint());
        }
        libraries.insert(library.name().to_owned(), json!(path));
    }
    let nvrtc = compile::version().ok().map(|(major, minor)| format!("{major}.{minor}"));
    let gpus: Vec<Value> = device::gpus()
        .unwrap_or_default()
        .into_iter()
        .map(|gpu| json!({"device": format!("cuda:{}", gpu.ordinal), "name": gpu.name, "free": gpu.free, "total": gpu.total}))
        .collect();
    json!({"libraries": libraries, "nvrtc_version": nvrtc, "gpus": gpus, "hints": hints})
}

fn to_text(report: &Value) -> String {
    let text = |pointer: &str| report.pointer(pointer).and_then(Value::as_str).unwrap_or("?").to_owned();
    let number = |pointer: &str| report.pointer(pointer).and_then(Value::as_u64);
    let size = |pointer: &str| number(pointer).map_or_else(|| "unknown".to_owned(), bytes);
    let yes = |pointer: &str, yes: &str, no: &str| {
        let is = report.pointer(pointer).and_then(Value::as_bool).unwrap_or(false);
        if is { yes.to_owned() } else { no.to_owned() }
    };
    let list = |pointer: &str| -> Vec<String> {
        let items = report.pointer(pointer).and_then(Value::as_array);
        items.into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
    };
    let mut out = format!("qerl {}\n", text("/qerl"));
    out += &format!("cpu        {}, {} threads\n", text("/cpu/model"), number("/cpu/threads").unwrap_or(1));
    out += &format!("           {}\n", list("/cpu/features").join(" "));
    out += &format!("memory     {}, {} available\n", size("/memory/total"), size("/memory/available"));
    for (name, key) in [("store", "store"), ("hub cache", "hub_cache")] {
        if report[key].is_null() {
            out += &format!("{name:<10} no folder known: set HF_HOME\n");
            continue;
        }
        out += &format!(
            "{name:<10} {} ({}{}, {} free{})\n",
            text(&format!("/{key}/path")),
            size(&format!("/{key}/bytes")),
            yes(&format!("/{key}/exists"), "", ", not made yet"),
            size(&format!("/{key}/free")),
            yes(&format!("/{key}/writable"), "", ", NOT WRITABLE"),
        );
    }
    match report.pointer("/hub/error").and_then(Value::as_str) {
        Some(error) => {
            out += &format!("hub        NOT USABLE: {error}\n");
            if let Some(hint) = report.pointer("/hub/hint").and_then(Value::as_str) {
                out += &format!("           {hint}\n");
            }
        }
        None => {
            let token = yes("/hub/token", "with a token", "no token (HF_TOKEN)");
            let offline = yes("/hub/offline", ", offline (HF_HUB_OFFLINE)", "");
            out += &format!("hub        {}, {token}{offline}\n", text("/hub/endpoint"));
        }
    }
    let lib = |name: &str, key: &str| {
        let found = report.pointer(&format!("/cuda/libraries/{key}")).and_then(Value::as_str);
        format!("{name} {}", found.unwrap_or("not found"))
    };
    out += &format!(
        "cuda       {}, {}, {}\n",
        lib("driver", "driver"),
        lib("NVRTC", "nvrtc"),
        lib("cuBLASLt", "cublaslt")
    );
    for hint in list("/cuda/hints") {
        out += &format!("           {hint}\n");
    }
    for gpu in report.pointer("/cuda/gpus").and_then(Value::as_array).into_iter().flatten() {
        let (name, free) = (gpu["name"].as_str().unwrap_or(""), gpu["free"].as_u64().unwrap_or(0));
        out += &format!("           {}: {name}, {} free\n", gpu["device"].as_str().unwrap_or(""), bytes(free));
    }
    out += &format!("device     {} (choose with --device or QERL_DEVICE)\n", text("/device"));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reports_on_any_machine() {
        let report = report().unwrap();
        assert!(report["memory"]["total"].as_u64().unwrap() > 1 << 20);
        assert!(report["cpu"]["threads"].as_u64().unwrap() >= 1);
        let text = to_text(&report);
        assert!(text.contains("QERL_DEVICE") && !text.contains('?'), "{text}");
    }
}
