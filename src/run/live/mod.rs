//! `--live`: a page with the curves of the run that goes on, served by this process to the browser of this machine.
//!
//! It serves a fixed list of paths out of memory: no file is ever opened for a request, and nothing that a request
//! says is acted on. Few connections at once, each short.

mod http;

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::picture::Picture;
use super::{Event, Listener};
use crate::store::Store;
use crate::{Error, Result, report};

/// Connections that are answered at once; further ones are told to come back.
const CONNECTIONS: usize = 16;
/// How often the server looks for a new connection and for its own end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What the server's threads share.
struct Shared {
    picture: Mutex<Picture>,
    /// Whom a request may ask for: where the page is for this machine only, only by this machine's names.
    anyone: bool,
    open: AtomicUsize,
    over: AtomicBool,
}

impl Shared {
    fn picture(&self) -> MutexGuard<'_, Picture> {
        self.picture.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A page that is being served; it goes when this is dropped.
pub struct Live {
    shared: Arc<Shared>,
    store: Store,
    address: SocketAddr,
    server: Option<JoinHandle<()>>,
}

impl Live {
    /// Serves at `address` (`127.0.0.1:8080`; port 0 takes a free one).
    ///
    /// # Errors
    /// When the address is none, is not this machine's own (`anyone` allows that), or cannot be bound.
    pub fn start(address: &str, anyone: bool, store: &Store) -> Result<Self> {
        let place = resolve(address)?;
        if !place.ip().is_loopback() && !anyone {
            return Err(Error::usage(format!("--live {address} would show the run to other machines, without a password"))
                .hint("use 127.0.0.1:PORT, and from elsewhere `ssh -L PORT:127.0.0.1:PORT HOST`; --live-anyone serves it to whoever reaches the port"));
        }
        let cannot = |e| {
            Error::failed(format!("cannot serve at {place}"))
                .caused_by(e)
                .hint("choose another port; 0 takes a free one")
        };
        let listener = TcpListener::bind(place).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        // Accepting must not block: the server has to see its own end.
        listener.set_nonblocking(true).map_err(cannot)?;
        let shared = Arc::new(Shared {
            picture: Mutex::new(Picture::default()),
            anyone,
            open: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        });
        let server = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || serve(&listener, &shared)
        });
        Ok(Self { shared, store: store.clone(), address, server: Some(server) })
    }

    /// Where a browser finds it.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn hear(&self, event: &Event) {
        if let Ok(event) = serde_json::to_value(event) {
            self.shared.picture().hear(&event, &self.store);
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        if let Some(server) = self.server.take() {
            // It can only end; a panic in it has been printed.
            let _ = server.join();
        }
    }
}

fn resolve(address: &str) -> Result<SocketAddr> {
    let hint = "give an address and a port, as in --live 127.0.0.1:8080";
    let mut found = address
        .to_socket_addrs()
        .map_err(|e| Error::usage(format!("--live {address} is no address")).caused_by(e).hint(hint))?;
    found.next().ok_or_else(|| Error::usage(format!("--live {address} is no address")).hint(hint))
}

fn serve(listener: &TcpListener, shared: &Arc<Shared>) {
    while !shared.over.load(Ordering::SeqCst) {
        match listener.accept() {
            Ok((stream, _)) => admit(stream, shared),
            // Nobody there, or one that went at once, or no descriptors left: the run matters more.
            Err(_) => std::thread::sleep(LOOK_EVERY),
        }
    }
}

fn admit(stream: TcpStream, shared: &Arc<Shared>) {
    /// Gives the place back, also after a panic.
    struct Place(Arc<Shared>);
    impl Drop for Place {
        fn drop(&mut self) {
            self.0.open.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let taken = shared.open.fetch_add(1, Ordering::SeqCst);
    let place = Place(Arc::clone(shared));
    if taken >= CONNECTIONS {
        http::refuse(stream);
        return;
    }
    // Without a thread there is no answer, and the connection closes.
    let _ = std::thread::Builder::new().name("live".to_owned()).spawn(move || {
        http::handle(stream, |host, path| answer(&place.0, host, path));
    });
}

/// A name of this machine, with or without a port. Anything else may be a foreign page whose name was pointed here to
/// read the run through the user's browser.
fn is_own(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn answer(shared: &Shared, host: &str, path: &str) -> http::Answer {
    if !shared.anyone && !is_own(host) {
        return http::Answer::plain(403, "this page is for the machine that it runs on\n");
    }
    let page = |part| {
        // Drawing takes time that the run must not wait for.
        let picture = shared.picture().clone();
        match report::live(part, &picture, picture.rows()) {
            Ok(html) => http::Answer { status: 200, kind: "text/html; charset=utf-8", body: html },
            Err(error) => http::Answer::plain(500, &format!("{error}\n")),
        }
    };
    match path {
        "/" => page(report::LivePart::Page),
        "/curves" => page(report::LivePart::Curves),
        "/live.js" => http::Answer {
            status: 200,
            kind: "text/javascript; charset=utf-8",
            body: include_str!("../../../templates/live.js").to_owned(),
        },
        "/data.json" => match serde_json::to_string(&*shared.picture()) {
            Ok(body) => http::Answer { status: 200, kind: "application/json", body },
            Err(error) => http::Answer::plain(500, &format!("{error}\n")),
        },
        _ => http::Answer::plain(404, "there is /, /curves, /live.js and /data.json\n"),
    }
}

/// A listener with a page beside it.
pub struct Shown<'a> {
    pub inner: &'a dyn Listener,
    pub live: Option<&'a Live>,
}

impl Listener for Shown<'_> {
    fn hear(&self, event: &Event) {
        if let Some(live) = self.live {
            live.hear(event);
        }
        self.inner.hear(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machines_names_are_its_own() {
        for own in ["localhost:80", "LOCALHOST", "127.0.0.1:9", "127.1.2.3", "[::1]:80"] {
            assert!(is_own(own), "{own}");
        }
        for foreign in
            ["evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example:80", "10.0.0.1:1", "", "[::2]:80"]
        {
            assert!(!is_own(foreign), "{foreign}");
        }
    }

    #[test]
    fn other_machines_are_let_in_only_when_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("store")).unwrap();
        for address in ["0.0.0.0:0", "[::]:0"] {
            let error = Live::start(address, false, &store).err().unwrap();
            assert!(error.to_string().contains("other machines") && error.exit_code() == 2, "{error}");
        }
        assert!(Live::start("0.0.0.0:0", true, &store).is_ok());
        assert!(Live::start("nonsense", false, &store).err().unwrap().to_string().contains("no address"));
        let first = Live::start("127.0.0.1:0", false, &store).unwrap();
        assert!(
            Live::start(&first.address().to_string(), false, &store)
                .err()
                .unwrap()
                .to_string()
                .contains("cannot serve")
        );
    }
}
