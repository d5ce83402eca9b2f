//! Who made what stands behind a report, and what of it does not compare.

use std::collections::{BTreeMap, BTreeSet};

use super::gather::Gathered;
use crate::report::{Data, Graph, Made, Node};
use crate::stages::Kind;
use crate::store::Artifact;

/// Fills the list of artifacts and the devices; warns of mixed ones.
pub(super) fn fill(data: &mut Data, gathered: &Gathered<'_>) {
    let mut all: BTreeMap<&str, &Artifact> = BTreeMap::new();
    for artifact in gathered.evaluations.iter().flat_map(|e| &e.lineage.all) {
        all.entry(&artifact.meta.fingerprint).or_insert(artifact);
    }
    data.graph = graph(&all);
    data.provenance = all.values().map(|a| made(a)).collect();
    let order = |m: &Made| (Kind::ALL.iter().position(|k| k.name() == m.kind), m.instance.clone());
    data.provenance.sort_by_key(order);
    let started = || data.provenance.iter().map(|m| m.started.as_str()).filter(|s| !s.is_empty());
    data.measured = started().min().zip(started().max()).map(|(a, b)| (a.to_owned(), b.to_owned()));
    let heavy: Vec<&Made> = data.provenance.iter().filter(|m| matches!(m.kind, "train" | "sft" | "eval")).collect();
    let distinct = |get: &dyn Fn(&Made) -> String, of: &[&Made]| -> BTreeSet<String> {
        of.iter().map(|m| get(m)).filter(|text| !text.is_empty()).collect()
    };
    let devices = distinct(&|m| processor(&m.device).to_owned(), &heavy);
    let backends = distinct(&|m| m.backend.clone().unwrap_or_default(), &heavy);
    let versions = distinct(&|m| m.qerl_version.clone(), &data.provenance.iter().collect::<Vec<_>>());
    let trainings: Vec<&Made> = heavy.iter().copied().filter(|m| m.kind == "train").collect();
    let threads = distinct(&|m| m.device.clone(), &trainings);
    let joined = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join("; ");
    let mut warnings = Vec::new();
    if devices.len() > 1 {
        warnings.push(format!("made on different devices ({}): times and memory do not compare", joined(&devices)));
    } else if threads.len() > 1 {
        warnings.push(format!(
            "trainings had different numbers of threads ({}): their times and tokens/s do not compare",
            joined(&threads)
        ));
    }
    if backends.len() > 1 {
        warnings.push(format!(
            "made by different backends ({}): equal settings give slightly different figures",
            joined(&backends)
        ));
    }
    if versions.len() > 1 {
        warnings.push(format!("made by different versions of qerl ({})", joined(&versions)));
    }
    let lost: BTreeSet<&String> = gathered.evaluations.iter().flat_map(|e| &e.lineage.lost).collect();
    if !lost.is_empty() {
        let lost: Vec<&str> = lost.into_iter().map(String::as_str).collect();
        warnings.push(format!(
            "artifacts behind these figures are no longer in the store or damaged ({}): settings, curves and costs that stood in them are missing",
            lost.join(", ")
        ));
    }
    data.devices = if threads.len() == 1 && devices.len() == 1 { threads } else { devices }.into_iter().collect();
    data.warnings.extend(warnings);
}

/// The stages of the artifacts, with an arrow where one read another's.
fn graph(all: &BTreeMap<&str, &Artifact>) -> Graph {
    let stage = |a: &Artifact| {
        let instance = a.meta.provenance.instance.split('@').next().unwrap_or_default();
        if instance.is_empty() { a.meta.kind.name().to_owned() } else { instance.to_owned() }
    };
    let mut graph = Graph::default();
    let mut place = BTreeMap::new();
    let mut sorted: Vec<&&Artifact> = all.values().collect();
    sorted.sort_by_key(|a| (a.meta.kind, stage(a)));
    for artifact in sorted {
        let (name, kind) = (stage(artifact), artifact.meta.kind.name());
        let known = graph.nodes.iter().position(|n| n.stage == name && n.kind == kind);
        let index = known.unwrap_or_else(|| {
            graph.nodes.push(Node { stage: name, kind: kind.to_owned(), count: 0, seconds: 0.0 });
            graph.nodes.len() - 1
        });
        graph.nodes[index].count += 1;
        graph.nodes[index].seconds += artifact.meta.provenance.wall_seconds;
        place.insert(artifact.meta.fingerprint.as_str(), index);
    }
    for artifact in all.values() {
        for input in artifact.meta.inputs.values() {
            if let (Some(&from), Some(&to)) = (place.get(input.as_str()), place.get(artifact.meta.fingerprint.as_str()))
                && from != to
                && !graph.edges.contains(&(from, to))
            {
                graph.edges.push((from, to));
            }
        }
    }
    graph.edges.sort_unstable();
    graph
}

fn made(artifact: &Artifact) -> Made {
    let meta = &artifact.meta;
    Made {
        instance: meta.provenance.instance.clone(),
        kind: meta.kind.name(),
        fingerprint: meta.fingerprint.clone(),
        seed: meta.config.get("seed").and_then(serde_json::Value::as_u64),
        qerl_version: meta.provenance.qerl_version.clone(),
        backend: meta.backend.clone(),
        host: meta.provenance.host.clone(),
        device: meta.provenance.device.clone(),
        started: meta.provenance.started.clone(),
        wall_seconds: meta.provenance.wall_seconds,
    }
}

/// `cpu (NAME, 4 threads)` without its number of threads, which a schedule may change.
fn processor(device: &str) -> &str {
    match device.rsplit_once(", ") {
        Some((name, tail)) if tail.ends_with("threads)") || tail.ends_with("thread)") => name,
        _ => device,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_not_part_of_a_device() {
        assert_eq!(processor("cpu (AMD EPYC, 4 threads)"), processor("cpu (AMD EPYC, 1 thread)"));
        assert_eq!(processor("NVIDIA H200"), "NVIDIA H200");
    }
}
