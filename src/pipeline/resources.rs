//! What an instance needs of a machine: read by the local scheduler and by Slurm, never part of a fingerprint.

/// What a scheduler must set aside. Never part of a fingerprint.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Resources {
    /// Devices; each stage gets its own.
    pub gpus: u32,
    /// CPU threads; a fair share where it is 0.
    pub cpus: u32,
    /// `16GiB` and the like.
    pub memory: Option<String>,
    /// `HH:MM:SS` or minutes, for a cluster's scheduler.
    pub time: Option<String>,
    /// A cluster's partition.
    pub partition: Option<String>,
}

impl Resources {
    /// `memory` in bytes.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn memory_bytes(&self) -> Result<Option<u64>, String> {
        self.memory.as_deref().map(bytes).transpose()
    }

    /// The first key whose value cannot be used, and why.
    pub fn trouble(&self) -> Option<(&'static str, String)> {
        if let Err(why) = self.memory_bytes() {
            return Some(("memory", why));
        }
        if let Some(time) = self.time.as_deref()
            && !is_time(time)
        {
            return Some(("time", format!("`{time}` is no time: write minutes, HH:MM:SS or D-HH:MM:SS")));
        }
        if let Some(partition) = self.partition.as_deref()
            && !is_partition(partition)
        {
            return Some(("partition", format!("`{partition}` is no partition's name")));
        }
        None
    }
}

/// Bytes of `512MiB`, `16GiB`, `1.5TB`, or a plain number of bytes.
fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no size: write 512MiB, 16GiB or the like");
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..split], text[split..].trim());
    let unit: u64 = match unit {
        "" | "B" => 1,
        "kB" | "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "TiB" | "T" => 1 << 40,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let total = number * unit as f64;
    if (1.0..1e18).contains(&total) { Ok(total as u64) } else { Err(wrong()) }
}

/// Minutes, `MM:SS`, `HH:MM:SS` or `D-HH:MM:SS`, as sbatch takes them.
fn is_time(text: &str) -> bool {
    let (days, clock) = text.split_once('-').map_or((None, text), |(days, clock)| (Some(days), clock));
    let digits = |s: &str| !s.is_empty() && s.len() <= 6 && s.bytes().all(|b| b.is_ascii_digit());
    days.is_none_or(digits) && clock.split(':').count() <= 3 && clock.split(':').all(digits)
}

/// Comma-separated names, as sbatch takes them.
fn is_partition(text: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || "_-.,".contains(c);
    !text.is_empty() && !text.starts_with('-') && text.len() <= 100 && text.chars().all(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times() {
        let of = |text: &str| Resources { memory: Some(text.to_owned()), ..Resources::default() }.memory_bytes();
        assert_eq!(of("16GiB"), Ok(Some(16 << 30)));
        assert_eq!(of("1.5 GB"), Ok(Some(1_500_000_000)));
        assert_eq!(of("4096"), Ok(Some(4096)));
        for wrong in ["", "GiB", "16 gigs", "-1GiB", "0", "1e3", "99999999TiB", "1.2.3M", "é"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        for (time, good) in [
            ("90", true),
            ("01:30:00", true),
            ("2-00:00:00", true),
            ("", false),
            ("1h", false),
            ("1:2:3:4", false),
            ("-1", false),
            ("1 --wrap=x", false),
        ] {
            assert_eq!(is_time(time), good, "{time}");
        }
        assert!(is_partition("gpu,long-1") && !is_partition("--wrap=x") && !is_partition("a b") && !is_partition(""));
    }
}
