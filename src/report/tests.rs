use std::collections::BTreeMap;

use super::*;

fn sample() -> Data {
    let cell =
        |accuracy: f64| Cell { accuracy, low: accuracy - 0.1, high: accuracy + 0.1, points: 1, ..Cell::default() };
    let point = |step: f64, mean: f64| Point { step, mean, low: mean, high: mean };
    let row = |label: &str, before: f64, after: f64| Row {
        label: label.to_owned(),
        baseline: Some("bf16".to_owned()),
        differences: vec!["train.lr: 5e-6 -> 1e-5 <b>".to_owned()],
        cells: BTreeMap::from([
            ("before".to_owned(), BTreeMap::from([("arith".to_owned(), cell(before))])),
            ("after".to_owned(), BTreeMap::from([("arith".to_owned(), cell(after))])),
        ]),
        curves: BTreeMap::from([("reward".to_owned(), vec![point(1.0, 0.25), point(2.0, 0.5)])]),
        ..Row::default()
    };
    let side = |row: &str| Side { row: row.to_owned(), stage: "after".to_owned() };
    Data {
        title: "t | <x>".to_owned(),
        axis: "variant".to_owned(),
        baseline: Some("bf16".to_owned()),
        datasets: vec!["arith".to_owned()],
        stages: vec!["before".to_owned(), "after".to_owned()],
        rows: vec![row("bf16", 0.25, 0.625), row("nvfp4|aqn", 0.25, 0.75)],
        comparisons: vec![Comparison {
            dataset: "arith".to_owned(),
            a: side("nvfp4|aqn"),
            b: side("bf16"),
            against: Against::Baseline,
            factors: vec!["train.aqn".to_owned()],
            difference: 0.125,
            low: -0.01,
            high: 0.26,
            questions: 200,
            gained: 31,
            lost: 6,
            p_value: 0.0712,
            exact: true,
            per_point: Vec::new(),
        }],
        ..Data::default()
    }
}

#[test]
fn the_page_holds_every_figure_and_escapes_what_comes_from_outside() {
    let mut data = sample();
    data.examples.push(Example {
        row: "bf16".to_owned(),
        dataset: "arith".to_owned(),
        id: "1".to_owned(),
        prompt: "<img src=x onerror=alert(1)>".to_owned(),
        gold: "4".to_owned(),
        before: "</pre><script>alert(1)</script>\u{202e}".to_owned(),
        after: "fine".to_owned(),
        was_right: false,
        is_right: true,
    });
    let page = html(&data, &Templates::default()).unwrap();
    for expected in ["62.5", "75.0", "65.0 to 85.0", "+50.0", "0.071", "within the noise of 200 questions", "<svg"] {
        assert!(page.contains(expected), "{expected} is missing");
    }
    for bad in ["<x>", "1e-5 <b>", "http://", "https://", "<script", "<img", "</pre><script", "\u{202e}", "url("] {
        assert!(!page.contains(bad), "{bad}");
    }
}

#[test]
fn markdown_tables_keep_their_columns_whatever_the_labels() {
    let text = markdown(&sample(), &Templates::default()).unwrap();
    let columns = |line: &str| line.replace("\\|", "").matches('|').count();
    let mut width = None;
    for line in text.lines() {
        let own = line.starts_with('|').then(|| columns(line));
        assert!(own.is_none() || width.is_none() || own == width, "{line}");
        width = own;
    }
    assert!(text.contains("| nvfp4\\|aqn |"), "{text}");
    assert!(text.contains("# t \\| &lt;x&gt;"));
    assert!(!text.contains("\n\n\n"), "no stacks of empty lines: {text}");
}

#[test]
fn the_verdict_names_the_best_row_and_a_single_factor() {
    let found = verdict::verdict(&sample());
    assert_eq!(found.headline, "nvfp4|aqn is highest with 75.0% on arith after.");
    assert_eq!(
        found.findings[0],
        "nvfp4|aqn against the baseline bf16 (train.aqn alone): +12.5 points, within the noise of 200 questions (95%: -1.0 to +26.0)."
    );
    // Two seeds that disagree do not settle what the questions alone would.
    let mut data = sample();
    data.over = Some("seed".to_owned());
    data.comparisons[0] = Comparison { low: 0.05, per_point: vec![0.05, 0.2], ..data.comparisons[0].clone() };
    let finding = &verdict::verdict(&data).findings[0];
    assert!(finding.ends_with("but not more than that of 2 values of seed (± 95.3)."), "{finding}");
    data.comparisons[0].per_point = vec![0.12, 0.125, 0.13];
    let finding = &verdict::verdict(&data).findings[0];
    assert!(finding.ends_with("and more than that of 3 values of seed (± 1.2)."), "{finding}");
}

#[test]
fn an_empty_report_still_renders() {
    assert!(html(&Data::default(), &Templates::default()).unwrap().contains("No evaluation was gathered"));
    assert!(!markdown(&Data::default(), &Templates::default()).unwrap().is_empty());
}

/// Every string that comes from outside, wherever it stands, is shown and not obeyed.
#[test]
fn no_string_of_a_report_can_inject_anything() {
    const BAD: &str = "<img src=x> | `x` **b** [l](http://e) \u{202e}";
    let bad = || BAD.to_owned();
    let side = || Side { row: bad(), stage: bad() };
    let cell = Cell { accuracy: 0.5, low: 0.4, high: 0.6, points: 1, ..Cell::default() };
    let point = |step: f64| Point { step, mean: step, low: step, high: step };
    let row = |n: usize| Row {
        label: format!("{BAD}{n}"),
        point: ["a", "b", "c"].map(|axis| (format!("{axis}{BAD}"), format!("{BAD}{n}"))).into(),
        format: Some(bad()),
        baseline: Some(format!("{BAD}0")),
        differences: vec![bad()],
        cells: BTreeMap::from([(bad(), BTreeMap::from([(bad(), cell.clone())]))]),
        methods: BTreeMap::from([(bad(), bad())]),
        curves: BTreeMap::from([("reward".to_owned(), vec![point(1.0), point(2.0)])]),
        cost: Cost { step_phases: vec![("update", 1.0)], quantization_error: Some(0.1), ..Cost::default() },
        layer_errors: vec![LayerError { layer: format!("m.{n}.{BAD}"), relative_frobenius: 0.1 }],
        failed: 1,
    };
    let data = Data {
        title: bad(),
        pipeline: bad(),
        file: Some(bad()),
        arguments: bad(),
        qerl_version: "1".to_owned(),
        measured: None,
        devices: vec![bad(), bad()],
        axis: bad(),
        over: Some(bad()),
        over_labels: vec![bad(), bad()],
        baseline: Some(bad()),
        datasets: vec![bad()],
        stages: vec![bad()],
        rows: (0..6).map(row).collect(),
        comparisons: vec![Comparison {
            dataset: bad(),
            a: side(),
            b: side(),
            factors: vec![bad()],
            ..Comparison::default()
        }],
        shared: vec![(bad(), bad())],
        failures: vec![Failure { instance: bad(), reason: bad() }],
        warnings: vec![bad()],
        ranking: vec![Rank {
            dataset: bad(),
            row: bad(),
            per_point: vec![(bad(), 0.5), (bad(), 0.6)],
            ..Rank::default()
        }],
        flips: vec![Flips { row: bad(), dataset: bad(), gained: vec![bad()], lost: vec![bad()] }],
        examples: vec![Example {
            row: bad(),
            dataset: bad(),
            id: bad(),
            prompt: bad(),
            gold: bad(),
            before: bad(),
            after: bad(),
            was_right: true,
            is_right: false,
        }],
        provenance: vec![Made {
            instance: bad(),
            kind: "eval",
            fingerprint: "ab".to_owned(),
            seed: None,
            qerl_version: bad(),
            backend: None,
            host: bad(),
            device: bad(),
            started: bad(),
            wall_seconds: 1.0,
        }],
        ..Data::default()
    };
    let page = html(&data, &Templates::default()).unwrap();
    assert!(!page.contains("<img") && !page.contains('\u{202e}'), "{page}");
    assert!(page.matches("&lt;img").count() > 60, "all of them are shown");
    for plot in ["by every axis", "pass@1 in percent", "Quantization error by layer", "Time of a step by phase"] {
        assert!(page.contains(plot), "{plot} is among them");
    }
    let text = markdown(&data, &Templates::default()).unwrap();
    assert!(!text.contains('\u{202e}'));
    let mut fenced = false;
    for line in text.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
        }
        // Code spans and fences show what is in them; everything else must be escaped.
        if !fenced && !line.contains("``") {
            assert!(!line.contains("<img") && !line.contains("**b**") && !line.contains("[l]("), "{line}");
        }
    }
}
