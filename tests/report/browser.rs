//! The page in a real browser: headless Chromium where there is one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Chromium under one of its names; tests say that they skip without.
fn chromium() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let folders = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&folders).flat_map(|f| names.map(|n| f.join(n))).find(|p| p.is_file());
    if found.is_none() {
        println!("skipped: there is no chromium here (Debian: apt-get install chromium)");
    }
    found
}

/// What the page says of itself when it is open: key -> value, and everything that Chromium logged of its console.
struct Seen {
    facts: serde_json::Value,
    console: Vec<String>,
}

/// Runs after loading; only its result is added to the page. It is let through by a nonce of its own, everything else
/// of the page's policy stays.
const PROBE: &str = r#"addEventListener('load', () => {
  const all = s => [...document.querySelectorAll(s)];
  const inside = svg => { const box = svg.getBoundingClientRect();
    return [...svg.querySelectorAll('text')].every(t => { const b = t.getBoundingClientRect();
      return b.width === 0 || (b.left >= box.left - 2 && b.right <= box.right + 2 && b.bottom <= box.bottom + 2); }); };
  const plots = all('.plots svg[role=img]');
  document.documentElement.setAttribute('data-facts', JSON.stringify({
    tables: all('table').length, rows: all('table tr').length, plots: plots.length,
    axes: plots.every(s => s.querySelectorAll('text.tick').length >= 4 && s.querySelectorAll('line.grid').length >= 2),
    inside: plots.filter(s => !inside(s)).map(s => s.getAttribute('aria-label')),
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth, width: innerWidth,
    background: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color,
    scripts: all('script').length, images: all('img,iframe,object,embed,link').length,
    hover: all('svg circle title').length, resources: performance.getEntriesByType('resource').length,
    targets: all('nav a').filter(a => !document.querySelector(a.getAttribute('href'))).length }));
});"#;

fn open(browser: &Path, page: &Path, size: &str, dark: bool) -> Seen {
    let home = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(page).unwrap();
    let policy = "default-src 'none'; style-src 'unsafe-inline'";
    assert!(text.contains(policy), "the page forbids itself every load");
    let text = text.replacen(policy, "default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-probe'", 1);
    let text = text.replacen("</head>", &format!("<script nonce=\"probe\">{PROBE}</script></head>"), 1);
    let probed = home.path().join("page.html");
    std::fs::write(&probed, text).unwrap();
    let mut command = Command::new(browser);
    command
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"])
        .args(["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=4000", "--dump-dom"])
        .arg(format!("--window-size={size}"))
        .arg(format!("--user-data-dir={}", home.path().join("profile").display()));
    if dark {
        command.arg("--blink-settings=preferredColorScheme=0");
    }
    let output = command.arg(format!("file://{}", probed.display())).stdin(Stdio::null()).output().unwrap();
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let facts = dom.split("data-facts=\"").nth(1).and_then(|rest| rest.split('"').next());
    let facts = facts.unwrap_or_else(|| panic!("the page did not load: {log}")).replace("&quot;", "\"");
    Seen {
        facts: serde_json::from_str(&facts).unwrap(),
        console: log.lines().filter(|l| l.contains("CONSOLE")).map(str::to_owned).collect(),
    }
}

/// `rgb(r, g, b)` -> its mean.
fn brightness(facts: &serde_json::Value, key: &str) -> f64 {
    let text = facts[key].as_str().unwrap();
    let inner = text.trim_start_matches(|c| c != '(').trim_matches(['(', ')']);
    let parts: Vec<f64> = inner.split(',').filter_map(|p| p.trim().parse().ok()).collect();
    parts.iter().take(3).sum::<f64>() / 3.0
}

/// Opens `page` in light and dark on a desk and on a phone.
pub fn check(page: &Path, tables: usize, plots: usize) {
    let Some(browser) = chromium() else { return };
    for (size, dark) in [("1280,900", false), ("1280,900", true), ("390,844", false)] {
        let seen = open(&browser, page, size, dark);
        let facts = &seen.facts;
        let number = |key: &str| facts[key].as_i64().unwrap_or_else(|| panic!("{key}: {facts}"));
        assert_eq!(seen.console, Vec::<String>::new(), "{size}: the console is silent");
        assert_eq!((number("resources"), number("images"), number("scripts")), (0, 0, 1), "{size}: only the probe");
        assert!(number("tables") >= tables as i64 && number("plots") >= plots as i64, "{size}: {facts}");
        assert_eq!(facts["axes"], true, "{size}: every plot has ticks: {facts}");
        assert_eq!(facts["inside"], serde_json::json!([]), "{size}: a plot's text is cut off");
        assert!(number("hover") > 10, "{size}: values under the pointer: {facts}");
        assert_eq!(number("targets"), 0, "{size}: links within the page lead somewhere");
        assert!(number("wide") <= 0, "{size}: the page itself does not scroll sideways: {facts}");
        let (ground, ink) = (brightness(facts, "background"), brightness(facts, "ink"));
        assert!((ground < 60.0) == dark && (ink > 200.0) == dark, "{size}, dark {dark}: {facts}");
        assert!((ground - ink).abs() > 150.0, "{size}: contrast: {facts}");
    }
}

/// A page of a server that was open for some seconds.
pub struct Visit {
    pub dom: String,
    pub console: Vec<String>,
    /// Its script has fetched something after loading.
    pub asked_again: bool,
}

/// Opens `url` (of this machine: every name is unknown to the browser); `None` where there is no browser.
pub fn visit(url: &str) -> Option<Visit> {
    let browser = chromium()?;
    let home = tempfile::tempdir().unwrap();
    let net = home.path().join("net.json");
    let output = Command::new(browser)
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"])
        .args(["--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--virtual-time-budget=6000", "--dump-dom"])
        .arg(format!("--log-net-log={}", net.display()))
        .arg(format!("--user-data-dir={}", home.path().join("profile").display()))
        .arg(url)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    Some(Visit {
        dom: String::from_utf8_lossy(&output.stdout).into_owned(),
        console: log.lines().filter(|l| l.contains("CONSOLE")).map(str::to_owned).collect(),
        asked_again: std::fs::read_to_string(net).unwrap_or_default().contains("/curves"),
    })
}
