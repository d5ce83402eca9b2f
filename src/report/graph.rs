//! The pipeline as a drawing: stages in layers from left to right, arrows for what was handed on.

use std::fmt::Write as _;

use serde::Serialize;

use super::markup::escape;

/// The stages behind a report.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Graph {
    pub nodes: Vec<Node>,
    /// From, to: places in `nodes`.
    pub edges: Vec<(usize, usize)>,
}

/// One stage of the pipeline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    pub stage: String,
    pub kind: String,
    /// Distinct artifacts of this stage.
    pub count: usize,
    /// Wall time of all of them.
    pub seconds: f64,
}

const WIDE: f64 = 132.0;
const HIGH: f64 = 46.0;
const GAP_X: f64 = 40.0;
const GAP_Y: f64 = 16.0;

impl Graph {
    /// Layer of every node: one more than that of the farthest node before it.
    fn layers(&self) -> Vec<usize> {
        let mut layers = vec![0; self.nodes.len()];
        // A path has no more edges than nodes; a cycle (which cannot be) ends with the rounds.
        for _ in 0..self.nodes.len() {
            for &(from, to) in &self.edges {
                layers[to] = layers[to].max((layers[from] + 1).min(self.nodes.len() - 1));
            }
        }
        layers
    }

    /// The drawing; `None` where there is nothing to draw.
    pub fn svg(&self) -> Option<String> {
        if self.nodes.is_empty() || self.edges.iter().any(|(a, b)| (*a).max(*b) >= self.nodes.len()) {
            return None;
        }
        let layers = self.layers();
        let count = layers.iter().max().map_or(1, |l| l + 1);
        let mut rows = vec![0usize; count];
        let mut place = Vec::new();
        for &layer in &layers {
            place.push((layer, rows[layer]));
            rows[layer] += 1;
        }
        let most = rows.iter().copied().max().unwrap_or(1);
        let width = count as f64 * (WIDE + GAP_X) - GAP_X + 4.0;
        let height = most as f64 * (HIGH + GAP_Y) - GAP_Y + 4.0;
        let at = |node: usize| {
            let (layer, row) = place[node];
            let free = (most - rows[layer]) as f64 * (HIGH + GAP_Y) / 2.0;
            (2.0 + layer as f64 * (WIDE + GAP_X), 2.0 + free + row as f64 * (HIGH + GAP_Y))
        };
        // Writing to a String cannot fail.
        let mut out = format!(
            r#"<svg class="graph" viewBox="0 0 {width:.0} {height:.0}" style="min-width:{:.0}px;max-width:{width:.0}px" role="img" aria-label="pipeline"><title>pipeline</title>"#,
            width.min(620.0)
        );
        for &(from, to) in &self.edges {
            let ((x1, y1), (x2, y2)) = (at(from), at(to));
            let (x1, y1, y2) = (x1 + WIDE, y1 + HIGH / 2.0, y2 + HIGH / 2.0);
            let bend = (x2 - x1) / 2.0;
            let _ = write!(
                out,
                r#"<path class="arrow" d="M{x1:.1},{y1:.1}C{:.1},{y1:.1} {:.1},{y2:.1} {:.1},{y2:.1}"/><path class="head" d="M{x2:.1},{y2:.1}l-7,-3.5v7z"/>"#,
                x1 + bend,
                x2 - bend,
                x2 - 6.0
            );
        }
        for (i, node) in self.nodes.iter().enumerate() {
            let (x, y) = at(i);
            let short: String = node.stage.chars().take(17).collect();
            let times = if node.count > 1 { format!(" × {}", node.count) } else { String::new() };
            let _ = write!(
                out,
                r#"<g><title>{}, {}: {} in {:.1} s</title><rect x="{x:.1}" y="{y:.1}" width="{WIDE}" height="{HIGH}" rx="6"/><text class="name" x="{:.1}" y="{:.1}">{}</text><text x="{:.1}" y="{:.1}">{}{times}</text></g>"#,
                escape(&node.stage),
                escape(&node.kind),
                node.count,
                node.seconds,
                x + 10.0,
                y + 19.0,
                escape(&short),
                x + 10.0,
                y + 36.0,
                escape(&node.kind)
            );
        }
        out.push_str("</svg>");
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(stage: &str) -> Node {
        Node { stage: stage.to_owned(), kind: "train".to_owned(), count: 2, seconds: 1.0 }
    }

    #[test]
    fn a_stage_stands_to_the_right_of_all_that_it_reads() {
        let graph = Graph { nodes: vec![node("c"), node("a"), node("<b>")], edges: vec![(1, 2), (2, 0), (1, 0)] };
        assert_eq!(graph.layers(), [2, 0, 1]);
        let svg = graph.svg().unwrap();
        assert_eq!((svg.matches("<rect").count(), svg.matches("class=\"head\"").count()), (3, 3));
        assert!(svg.contains("&lt;b&gt;") && !svg.contains("<b>"));
        assert_eq!(Graph::default().svg(), None);
        let cycle = Graph { nodes: vec![node("a"), node("b")], edges: vec![(0, 1), (1, 0)] };
        assert!(cycle.svg().is_some(), "what cannot be does not hang");
    }
}
