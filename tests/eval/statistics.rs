//! Intervals, tests and pass@k against scipy and statsmodels: statistics.json was written by statistics.py.

use qerl::eval::stats;
use serde_json::Value;

fn reference() -> Value {
    serde_json::from_str(include_str!("statistics.json")).unwrap()
}

fn rows(all: &Value, key: &str) -> Vec<Vec<f64>> {
    let row = |row: &Value| row.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    let rows: Vec<Vec<f64>> = all[key].as_array().unwrap().iter().map(row).collect();
    assert!(rows.len() > 5, "{key}");
    rows
}

fn list(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn close(a: f64, b: f64, what: &str) {
    assert!((a - b).abs() <= 1e-11 * b.abs().max(1.0), "{what}: {a} instead of {b}");
}

#[test]
fn figures_are_those_of_scipy_and_statsmodels() {
    let all = reference();
    let count = |x: f64| x as usize;
    for row in rows(&all, "wilson") {
        let (low, high) = stats::wilson(count(row[0]), count(row[1]));
        close(low, row[2], "wilson");
        close(high, row[3], "wilson");
    }
    for row in rows(&all, "pass_at") {
        close(stats::pass_at(count(row[0]), count(row[1]), count(row[2])).unwrap(), row[3], "pass@k");
    }
    for row in rows(&all, "mcnemar") {
        close(stats::mcnemar(count(row[0]), count(row[1])), row[2], "mcnemar");
    }
    for row in rows(&all, "t95") {
        let got = stats::t95(count(row[0]));
        assert!((got - row[1]).abs() < 1e-5, "t: {got} instead of {}", row[1]);
    }
    for row in all["clustered"].as_array().unwrap() {
        let shares: Vec<f64> = list(&row[0]).into_iter().map(|right| right / 4.0).collect();
        close(stats::clustered_error(&shares), row[1].as_f64().unwrap(), "clustered error");
    }
}

/// Ours draws 2,000 times, the reference 100,000: an end of an interval may lie off by what that leaves to chance.
#[test]
fn bootstrap_intervals_are_scipys_within_their_draws() {
    let all = reference();
    let paired = &all["paired"];
    let number = |key: &str| paired[key].as_f64().unwrap();
    let (a, b) = (list(&paired["a"]), list(&paired["b"]));
    let found = stats::paired(&a, &b, 5).unwrap();
    close(found.difference, number("difference"), "difference");
    let width = number("high") - number("low");
    assert!((found.low - number("low")).abs() < 0.08 * width, "{found:?}");
    assert!((found.high - number("high")).abs() < 0.08 * width, "{found:?}");
    let (low, high) = stats::bootstrap(&a, 5);
    let width = number("high_a") - number("low_a");
    assert!((low - number("low_a")).abs() < 0.08 * width && (high - number("high_a")).abs() < 0.08 * width);
}
