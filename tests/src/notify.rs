//! The socket on which a service tells its manager that it is ready and alive.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::ctl::readable_by_all;

/// A service manager's end of `NOTIFY_SOCKET`.
#[derive(Debug)]
pub struct NotifySocket {
    path: PathBuf,
    socket: UnixDatagram,
    said: Mutex<Vec<(Instant, String)>>,
}

impl NotifySocket {
    /// Binds it at `path`, over an earlier one.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        let _ = std::fs::remove_file(path);
        let socket = UnixDatagram::bind(path).expect("a socket in a temporary directory");
        readable_by_all(path);
        Self { path: path.to_owned(), socket, said: Mutex::new(Vec::new()) }
    }

    /// What goes into `NOTIFY_SOCKET`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether `line`, such as `READY=1`, has been said, or is within `limit`.
    pub fn wait_for(&self, line: &str, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        loop {
            if self.said().iter().any(|(_, said)| said == line) {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.receive(left) {
                return self.said().iter().any(|(_, said)| said == line);
            }
        }
    }

    /// The times at which `line` is said during `period`.
    pub fn times_of(&self, line: &str, period: Duration) -> Vec<Instant> {
        let start = Instant::now();
        while start.elapsed() < period {
            self.receive(period.saturating_sub(start.elapsed()).max(Duration::from_millis(1)));
        }
        let said = self.said();
        said.iter().filter(|(at, text)| *at >= start && text == line).map(|(at, _)| *at).collect()
    }

    /// Everything that was said, one entry a line, with the time it came.
    #[must_use]
    pub fn said(&self) -> Vec<(Instant, String)> {
        self.said.lock().unwrap().clone()
    }

    fn receive(&self, limit: Duration) -> bool {
        self.socket.set_read_timeout(Some(limit)).expect("a limit above zero");
        let mut datagram = [0_u8; 4096];
        match self.socket.recv(&mut datagram) {
            Ok(count) => {
                let text = String::from_utf8_lossy(&datagram[..count]).into_owned();
                let now = Instant::now();
                let mut said = self.said.lock().unwrap();
                said.extend(text.lines().map(|line| (now, line.to_owned())));
                true
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => true,
            Err(_) => false,
        }
    }
}
