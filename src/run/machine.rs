//! What this machine is, for provenance and `doctor`.

/// `cpu (AMD EPYC 7B13, 4 threads)`.
pub fn cpu_name(threads: usize) -> String {
    let s = if threads == 1 { "" } else { "s" };
    format!("cpu ({}, {threads} thread{s})", cpu_model())
}

/// The processor's name as the kernel tells it, or its architecture.
pub fn cpu_model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, n)| n.trim()));
    name.filter(|n| !n.is_empty()).unwrap_or(std::env::consts::ARCH).to_owned()
}

/// Threads that this process may use.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Bytes of memory of this machine, where the kernel tells.
pub fn memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
