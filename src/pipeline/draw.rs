//! A graph as a diagram: Mermaid for Markdown, dot for Graphviz.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{Edge, Graph, Instance};
use crate::stages::Kind;

/// Nodes and arrows, ready to be written in either language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawing {
    name: String,
    /// Label and kind.
    nodes: Vec<(String, Kind)>,
    /// From, to, what is written on it; dotted where no data is handed on.
    arrows: Vec<Arrow>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrow {
    from: usize,
    to: usize,
    label: String,
    dotted: bool,
}

impl Graph {
    /// One node per instance.
    pub fn drawing_of_instances(&self) -> Drawing {
        let nodes = self.instances.iter().map(|i| (i.name(), i.kind)).collect();
        self.drawing(nodes, |index| index)
    }

    /// One node per stage, with the number of its instances.
    pub fn drawing_of_stages(&self) -> Drawing {
        let mut stages: Vec<(&str, Kind, usize)> = Vec::new();
        let mut place = Vec::new();
        for instance in &self.instances {
            let known = stages.iter().position(|s| s.0 == instance.stage);
            let index = known.unwrap_or_else(|| {
                stages.push((&instance.stage, instance.kind, 0));
                stages.len() - 1
            });
            stages[index].2 += 1;
            place.push(index);
        }
        let label = |(name, kind, n): &(&str, Kind, usize)| match n {
            1 => ((*name).to_owned(), *kind),
            n => (format!("{name} x {n}"), *kind),
        };
        self.drawing(stages.iter().map(label).collect(), |index| place[index])
    }

    fn drawing(&self, nodes: Vec<(String, Kind)>, place: impl Fn(usize) -> usize) -> Drawing {
        let mut arrows = BTreeSet::new();
        for (index, instance) in self.instances.iter().enumerate() {
            let to = place(index);
            for edge in &instance.inputs {
                arrows.insert(Arrow { from: place(edge.from), to, label: label(instance, edge), dotted: false });
            }
            for need in &instance.needs {
                arrows.insert(Arrow { from: place(*need), to, label: String::new(), dotted: true });
            }
        }
        Drawing { name: self.name.clone(), nodes, arrows: arrows.into_iter().collect() }
    }
}

/// What an edge is for where that is not plain: the part of a data set, a checkpoint.
fn label(instance: &Instance, edge: &Edge) -> String {
    match &edge.part {
        Some(part) if instance.kind != Kind::Report => part.clone(),
        _ if edge.checkpoint != "last" => edge.checkpoint.clone(),
        _ => String::new(),
    }
}

impl Drawing {
    /// A flowchart in Mermaid.
    pub fn mermaid(&self) -> String {
        let mut out = "flowchart LR\n".to_owned();
        // Writing to a String cannot fail.
        for (i, (label, kind)) in self.nodes.iter().enumerate() {
            let _ = writeln!(out, "  n{i}[\"{}<br/><small>{}</small>\"]", html(label), kind.name());
        }
        for arrow in &self.arrows {
            let line = if arrow.dotted { "-.->" } else { "-->" };
            let label = if arrow.label.is_empty() { String::new() } else { format!("|{}|", html(&arrow.label)) };
            let _ = writeln!(out, "  n{} {line}{label} n{}", arrow.from, arrow.to);
        }
        out
    }

    /// A digraph for Graphviz.
    pub fn dot(&self) -> String {
        let mut out = format!(
            "digraph \"{}\" {{\n  rankdir=LR;\n  node [shape=box, fontname=\"sans-serif\"];\n",
            quoted(&self.name)
        );
        for (i, (label, kind)) in self.nodes.iter().enumerate() {
            let _ = writeln!(out, "  n{i} [label=\"{}\\n{}\"];", quoted(label), kind.name());
        }
        for arrow in &self.arrows {
            let mut attributes = Vec::new();
            if !arrow.label.is_empty() {
                attributes.push(format!("label=\"{}\"", quoted(&arrow.label)));
            }
            if arrow.dotted {
                attributes.push("style=dotted".to_owned());
            }
            let tail = if attributes.is_empty() { String::new() } else { format!(" [{}]", attributes.join(", ")) };
            let _ = writeln!(out, "  n{} -> n{}{tail};", arrow.from, arrow.to);
        }
        out.push_str("}\n");
        out
    }
}

/// Mermaid reads HTML entities inside quotes.
fn html(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '"' => out.push_str("#quot;"),
            '<' => out.push_str("#lt;"),
            '>' => out.push_str("#gt;"),
            '#' => out.push_str("#35;"),
            '&' => out.push_str("#amp;"),
            '|' => out.push_str("#124;"),
            c => out.push(c),
        }
    }
    out
}

fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
