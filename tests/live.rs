//! The live page and `qerl watch`: a raw TCP client, a browser, and the binary on a run that goes on.

#[path = "report/browser.rs"]
#[allow(dead_code, reason = "the report's tests use the rest")]
mod browser;
mod shell;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use qerl::run::live::{Live, Shown};
use qerl::run::{Deaf, Event, Listener};
use qerl::store::Store;
use serde_json::{Value, json};

const HOSTILE: &str = "<script>alert(1)</script><img src=x>";

/// A page of a run with `steps` finished training steps.
fn served(steps: u64) -> (tempfile::TempDir, Live) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let live = Live::start("127.0.0.1:0", false, &store).unwrap();
    tell(&live, &Event::Planned { pipeline: HOSTILE.into(), stages: 2, cached: 0, run: 2, same: 0 });
    tell(&live, &Event::Said { name: None, line: HOSTILE.into() });
    tell(&live, &Event::Failed { name: "after".into(), error: HOSTILE.into(), hint: None });
    (1..=steps).for_each(|n| tell(&live, &step(n)));
    (dir, live)
}

fn tell(live: &Live, event: &Event) {
    Shown { inner: &Deaf, live: Some(live) }.hear(event);
}

fn step(n: u64) -> Event {
    let figures =
        json!({"step": n, "reward": n as f64 / 100.0, "entropy": 1.5, "grad_norm": 0.25, "rollout/accuracy": 0.5});
    Event::Metrics { name: format!("train@label={HOSTILE}"), figures: figures.as_object().unwrap().clone() }
}

/// Sends `bytes` and reads the whole answer: status, head, body.
fn ask(address: SocketAddr, bytes: &[u8]) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(bytes).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    (head[9..12].parse().unwrap(), head.to_owned(), body.to_owned())
}

fn get(address: SocketAddr, path: &str) -> (u16, String, String) {
    ask(address, format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())
}

#[test]
fn the_page_shows_the_curves_and_nothing_in_them_is_run() {
    let (_dir, live) = served(5);
    let (status, head, page) = get(live.address(), "/");
    assert_eq!(status, 200);
    assert!(head.contains("Content-Security-Policy: default-src 'none'") && head.contains("nosniff"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", page.len())), "{head}");
    for expected in ["<b>Reward</b>", "<b>Entropy</b>", "class=\"line c0\"", "0.0500", "failed", "&lt;script&gt;"] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    for bad in ["<script>alert", "<img", "http://", "https://", "url(", "onerror"] {
        assert!(!page.contains(bad), "{bad}");
    }
    let data: Value = serde_json::from_str(&get(live.address(), "/data.json").2).unwrap();
    let stages = data["stages"].as_array().unwrap();
    let train = stages.iter().find(|s| s["name"].as_str().unwrap().starts_with("train@")).unwrap();
    assert_eq!(train["curves"]["reward"][4], json!([5, 0.05]));
    tell(&live, &step(6));
    let (_, _, part) = get(live.address(), "/curves");
    assert!(part.contains("0.0600") && !part.contains("<html"), "what is asked for again is the part that changes");
}

#[test]
fn what_is_no_request_of_this_machines_browser_is_refused() {
    let (_dir, live) = served(1);
    let at = live.address();
    for path in ["/../../etc/passwd", "/..%2f..%2fetc/passwd", "//etc/passwd", "/live.html.j2", "/store", "*", "/%00"] {
        let (status, _, body) = get(at, path);
        assert!(status == 404 && !body.contains("root:"), "{path}: {status} {body}");
    }
    let status = |text: &str| ask(at, text.as_bytes()).0;
    assert_eq!(status("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"), 403, "a foreign name that was pointed here");
    assert_eq!(status("GET / HTTP/1.1\r\nHost: localhost:1\r\n\r\n"), 200, "through a forwarded port");
    assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), 400);
    assert_eq!(status("GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"), 400);
    assert_eq!(status("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"), 405);
    assert_eq!(status("nonsense\r\n\r\n"), 400);
    assert_eq!(ask(at, b"GET / HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n").0, 400);
    assert_eq!(status(&format!("GET /{} HTTP/1.1\r\n", "a".repeat(20 << 10))), 431);
    let (code, head, body) = ask(at, b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(code == 200 && body.is_empty() && !head.contains("Content-Length: 0"), "{head}");
}

#[test]
fn idle_connections_are_bounded_and_let_go() {
    let (_dir, live) = served(1);
    let idle: Vec<TcpStream> = (0..16).map(|_| TcpStream::connect(live.address()).unwrap()).collect();
    // The sixteen are there, once all are accepted; the next one is told so.
    let deadline = Instant::now() + Duration::from_secs(4);
    let refused = loop {
        if get(live.address(), "/data.json").0 == 503 {
            break true;
        }
        if Instant::now() > deadline {
            break false;
        }
    };
    assert!(refused, "a seventeenth connection is refused");
    drop(idle);
    let deadline = Instant::now() + Duration::from_secs(20);
    while get(live.address(), "/data.json").0 != 200 {
        assert!(Instant::now() < deadline, "places of connections that went are given back");
        std::thread::sleep(Duration::from_millis(20));
    }
    // A sender that never ends its request is told so.
    let (status, ..) = ask(live.address(), b"GET / HTTP/1.1\r\nHost: localhost\r\n");
    assert_eq!(status, 408);
    let at = live.address();
    drop(live);
    assert!(TcpStream::connect(at).is_err(), "the page goes with its run");
}

#[test]
fn a_browser_gets_the_new_curves_without_a_reload() {
    let (_dir, live) = served(2);
    (3..=40).for_each(|n| tell(&live, &step(n)));
    let Some(seen) = browser::visit(&live.url()) else { return };
    assert_eq!(seen.console, Vec::<String>::new(), "nothing is refused or fails");
    assert!(seen.dom.contains("<b>Reward</b>") && seen.dom.contains("0.4000"), "{}", seen.dom);
    assert!(seen.asked_again, "its script asks for the curves by itself");
}

const LONG: &str = r#"name: long
data:
  arith: {builtin: arith, template: qerl_think, n: 300}
stages:
  - id: model
    run: {download: {repo: bundled}}
  - id: adapter
    run: {lora: {model: model, rank: 4, alpha: 4, seed: 1}}
  - id: train
    run: {train: {policy: adapter, data: arith, algorithm: grpo, beta: 0.0, steps: 4000, prompts_per_step: 2, group_size: 2, max_completion: 6, lr: 1e-4, rewards: {accuracy: 1.0}, checkpoint_every: 1000}}
"#;

/// Ends the run also where an assertion fails.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_run_serves_itself_and_can_be_watched_from_another_terminal() {
    let place = shell::Place::new(LONG);
    assert!(place.fails(&["run", "p.yaml", "--live", "0.0.0.0:0"], 2).contains("other machines"));
    assert!(place.fails(&["run", "p.yaml", "--live", "nowhere"], 2).contains("127.0.0.1:8080"));
    assert!(place.fails(&["watch"], 1).contains("recorded runs"));
    let child = place.command(&["run", "p.yaml", "--live", "127.0.0.1:0"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut child = Running(child);
    let mut lines = BufReader::new(child.0.stderr.take().unwrap()).lines();
    let at: SocketAddr = loop {
        let line = lines.next().expect("it says where it is served").unwrap();
        if let Some(url) = line.strip_prefix("live: http://") {
            break url.trim_end_matches('/').parse().unwrap();
        }
    };
    // Keeps the pipe empty.
    std::thread::spawn(move || lines.for_each(drop));
    let steps = || {
        let data: Value = serde_json::from_str(&get(at, "/data.json").2).unwrap();
        let stages = data["stages"].as_array().unwrap().clone();
        stages.iter().find_map(|s| s["latest"]["step"].as_u64()).unwrap_or(0)
    };
    let deadline = Instant::now() + Duration::from_secs(240);
    while steps() < 3 {
        assert!(Instant::now() < deadline, "no step was shown");
        std::thread::sleep(Duration::from_millis(100));
    }
    let (text, _) = place.good(&["watch", "--once"]);
    assert!(text.contains("running") && text.contains("entropy"), "{text}");
    assert!(!text.contains('\x1b'), "no terminal, no colour: {text:?}");
    let (text, _) = place.good(&["watch", "last", "--once", "--json"]);
    let shown: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&shown["state"], &shown["pipeline"]), (&json!("running"), &json!("long")));
    let train = shown["stages"].as_array().unwrap().iter().find(|s| s["name"] == "train").unwrap();
    let entropy = train["curves"]["entropy"].as_array().unwrap();
    assert!(entropy.len() >= 3 && entropy[0][0] == 1 && entropy[0][1].as_f64().unwrap() > 0.0, "{train}");
    drop(child);

    // Of a run that is over it tells everything and ends by itself.
    let (text, _) = place.good(&["watch"]);
    let steps: Vec<&str> = text.lines().filter(|l| l.starts_with("train: step ")).collect();
    assert!(steps.len() >= 3 && steps[0].starts_with("train: step 1, ") && steps[0].contains("entropy "), "{text}");
    assert!(text.lines().last().unwrap().ends_with(" killed"), "{text}");
    let (text, _) = place.good(&["watch", "--json"]);
    assert!(text.lines().all(|l| serde_json::from_str::<Value>(l).is_ok()) && text.contains("\"event\":\"metrics\""));
}
