//! The engine against transformers and PEFT: the same comparisons as `qerl selftest --golden`.

use std::path::Path;

use qerl::engine::{Load, load};
use qerl::selftest::{Tolerance, folder, golden};

#[test]
fn logits_log_probs_continuations_and_gradients() {
    let dir = folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/golden"));
    if !dir.is_dir() {
        eprintln!("skipped: no golden data at {} (set QERL_GOLDEN_DIR)", dir.display());
        return;
    }
    let make = |model: &Path, adapter: Option<&Path>, trainable| load(&Load { model, adapter, trainable, threads: 2 });
    let checks = golden(&dir, &make, &Tolerance::F32).unwrap();
    let failed: Vec<String> = checks
        .iter()
        .filter(|check| !check.passed)
        .map(|check| format!("{}: {:.2} times the tolerance ({})", check.name, check.error, check.detail))
        .collect();
    let worst = checks.iter().map(|check| check.error).fold(0.0, f64::max);
    println!("{} comparisons, the worst at {worst:.3} of its tolerance", checks.len());
    assert!(failed.is_empty(), "{} of {} comparisons failed:\n{}", failed.len(), checks.len(), failed.join("\n"));
}
