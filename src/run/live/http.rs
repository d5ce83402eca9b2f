//! As much of HTTP/1.1 as a page needs: one GET or HEAD a connection, a short head, a fixed answer.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// A longer request head is nobody's browser.
const LONGEST_HEAD: usize = 16 << 10;
/// A request must be whole by then, and its answer taken.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a path gives.
pub(super) struct Answer {
    pub status: u16,
    pub kind: &'static str,
    pub body: String,
}

impl Answer {
    pub fn plain(status: u16, text: &str) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", body: text.to_owned() }
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    }
}

/// Reads one request, answers it by host and path, and closes.
pub(super) fn handle(mut stream: TcpStream, answer: impl Fn(&str, &str) -> Answer) {
    // A socket that cannot be set up or breaks is closed: there is nobody to tell.
    if stream.set_nonblocking(false).is_err() || stream.set_write_timeout(Some(PATIENCE)).is_err() {
        return;
    }
    let (answer, body) = match read_head(&mut stream) {
        Ok(head) => match parse(&head) {
            Ok(request) => (answer(request.host, request.path), request.body),
            Err(refusal) => (refusal, true),
        },
        Err(Some(refusal)) => (refusal, true),
        Err(None) => return,
    };
    send(&mut stream, &answer, body);
}

/// Too many at once.
pub(super) fn refuse(mut stream: TcpStream) {
    let ready = stream.set_nonblocking(false).and_then(|()| stream.set_write_timeout(Some(Duration::from_millis(200))));
    if ready.is_ok() {
        send(&mut stream, &Answer::plain(503, "too many connections, try again\n"), true);
    }
}

/// The request up to its empty line; `Err(None)` where the other side has gone.
fn read_head(stream: &mut TcpStream) -> Result<String, Option<Answer>> {
    let deadline = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut chunk = [0u8; 2048];
    let late = || Some(Answer::plain(408, "the request did not come in time\n"));
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return Err(late());
        }
        match stream.read(&mut chunk) {
            Ok(0) => return Err(None),
            Ok(n) => head.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                return Err(late());
            }
            Err(_) => return Err(None),
        }
        if let Some(end) = head.windows(4).position(|w| w == b"\r\n\r\n") {
            head.truncate(end);
            return String::from_utf8(head).map_err(|_| Some(Answer::plain(400, "the request is not text\n")));
        }
        if head.len() > LONGEST_HEAD {
            return Err(Some(Answer::plain(431, "the request is too long\n")));
        }
    }
}

struct Request<'a> {
    host: &'a str,
    path: &'a str,
    /// Not for HEAD.
    body: bool,
}

fn parse(head: &str) -> Result<Request<'_>, Answer> {
    let bad = |why: &str| Answer::plain(400, &format!("{why}\n"));
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(path), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(bad("no request line"));
    };
    if !matches!(version, "HTTP/1.1" | "HTTP/1.0") {
        return Err(bad("HTTP/1.1 is spoken here"));
    }
    let body = match method {
        "GET" => true,
        "HEAD" => false,
        _ => return Err(Answer::plain(405, "only GET and HEAD\n")),
    };
    let hosts: Vec<&str> = lines
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| name.eq_ignore_ascii_case("host"))
        .map(|(_, value)| value.trim())
        .collect();
    // Two of them are how a proxy and a server are made to disagree.
    let [host] = hosts.as_slice() else { return Err(bad("exactly one Host is needed")) };
    Ok(Request { host, path, body })
}

fn send(stream: &mut TcpStream, answer: &Answer, body: bool) {
    // The page runs its own script and asks its own server, nothing else.
    const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; \
                          img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    let Answer { status, kind, body: text } = answer;
    let allow = if *status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status} {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Content-Security-Policy: {POLICY}\r\n\
         X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n",
        reason(*status),
        text.len()
    );
    let text = if body { text.as_str() } else { "" };
    let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(text.as_bytes()));
    if sent.is_err() || stream.shutdown(Shutdown::Write).is_err() {
        return;
    }
    // Closing with unread bytes would reset the connection and take the answer with it. A sender that drips on and on
    // is not waited for.
    let deadline = Instant::now() + Duration::from_millis(200);
    let mut rest = [0u8; 2048];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero()
            || stream.set_read_timeout(Some(left)).is_err()
            || !matches!(stream.read(&mut rest), Ok(n) if n > 0)
        {
            return;
        }
    }
}
