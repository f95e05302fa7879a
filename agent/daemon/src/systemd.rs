//! Talking to the service manager: readiness, status, stop time and the watchdog.
//!
//! Outside a service manager everything here does nothing. Jobs must not inherit the variables that
//! are read here.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

/// A service manager that does not take a message for this long does without it.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Pings in each watchdog period: half of the period is the most that may lie between two, and a
/// ping that comes a little late must still keep to it.
const PINGS_PER_LIMIT: u32 = 3;

/// Tells the service manager how the agent is; clones tell the same one.
#[derive(Clone, Debug)]
pub struct Notifier {
    target: Option<Arc<(UnixDatagram, SocketAddr)>>,
    watchdog: Option<Watchdog>,
}

impl Notifier {
    /// A notifier for the service manager that started this process, if one did.
    ///
    /// The environment is read here and nowhere else: call it once, when the process starts.
    #[must_use]
    pub fn from_environment() -> Self {
        let notify_socket = std::env::var_os("NOTIFY_SOCKET");
        let notifier = Self::new(notify_socket.as_deref()).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot tell the service manager how the agent is");
            Self { target: None, watchdog: None }
        });
        let (usec, pid) = (std::env::var("WATCHDOG_USEC").ok(), std::env::var("WATCHDOG_PID").ok());
        notifier.watched(Watchdog::new(usec.as_deref(), pid.as_deref(), std::process::id()))
    }

    /// A notifier for the value of `NOTIFY_SOCKET`; without one, it does nothing.
    ///
    /// # Errors
    /// Where the value is not an address of a Unix socket.
    pub fn new(notify_socket: Option<&OsStr>) -> io::Result<Self> {
        let Some(name) = notify_socket.filter(|name| !name.is_empty()) else {
            return Ok(Self { target: None, watchdog: None });
        };
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(name)?,
            _ => {
                let message = format!("NOTIFY_SOCKET {name:?} is neither a path nor @NAME");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        Ok(Self { target: Some(Arc::new((socket, address))), watchdog: None })
    }

    /// The same, with a watchdog that wants to be fed.
    #[must_use]
    pub fn watched(self, watchdog: Option<Watchdog>) -> Self {
        Self { watchdog, ..self }
    }

    /// Requests to every socket would succeed from now on.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// One line for `systemctl status`.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={}", one_line(status)));
    }

    /// The agent has begun to stop.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping");
    }

    /// Starting or stopping takes at least this much longer from now on.
    pub fn extend_timeout(&self, by: Duration) {
        self.send(&format!("EXTEND_TIMEOUT_USEC={}", by.as_micros()));
    }

    /// Feeds the watchdog, if there is one, for as long as `probe` comes back, until told to stop.
    ///
    /// The probe must make a round trip through the agent's main loop, so that a loop that hangs
    /// ends the pings, and long work elsewhere does not.
    pub async fn watchdog<F: Future<Output = ()>>(
        self,
        probe: impl FnMut() -> F,
        stop: CancellationToken,
    ) {
        if let Some(watchdog) = self.watchdog {
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.feed(watchdog.period(), probe) => {}
            }
        }
    }

    async fn feed<F: Future<Output = ()>>(&self, period: Duration, mut probe: impl FnMut() -> F) {
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let mut answer = pin!(probe());
            if timeout(period, &mut answer).await.is_err() {
                tracing::error!("the main loop does not answer; the watchdog is not fed");
                // Its bound is the watchdog's: the service manager ends a process that hangs.
                answer.await;
                tracing::warn!("the main loop answers again");
            }
            self.ping();
        }
    }

    fn ping(&self) {
        self.send("WATCHDOG=1");
    }

    fn send(&self, message: &str) {
        let Some((socket, address)) = self.target.as_deref() else { return };
        if let Err(error) = socket.send_to_addr(message.as_bytes(), address) {
            tracing::warn!(%error, "cannot tell the service manager how the agent is");
        }
    }

    /// Asks for more time, again and again, as long as `progress` grows, but for no longer than
    /// `most` in all. Ends when there is no progress in a `step`, or no time left.
    ///
    /// To be dropped when the work is done.
    pub async fn extend_while(
        &self,
        mut progress: impl FnMut() -> u64,
        step: Duration,
        most: Duration,
    ) {
        let begin = Instant::now();
        let mut before = progress();
        loop {
            let left = most.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return;
            }
            // Twice the step, so that the next request comes well before this one is used up.
            self.extend_timeout((step * 2).min(left));
            tokio::time::sleep(step).await;
            let now = progress();
            if now == before {
                return;
            }
            before = now;
        }
    }
}

/// How often the service manager wants to hear from this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchdog {
    limit: Duration,
}

impl Watchdog {
    /// The watchdog that `WATCHDOG_USEC` asks for, if `WATCHDOG_PID` means this process: a process
    /// that merely inherited them is not watched.
    #[must_use]
    pub fn new(usec: Option<&str>, pid: Option<&str>, own_pid: u32) -> Option<Self> {
        if pid.is_some_and(|pid| pid.parse() != Ok(own_pid)) {
            return None;
        }
        let limit = Duration::from_micros(usec?.parse().ok()?);
        (!limit.is_zero()).then_some(Self { limit })
    }

    /// The time between two pings: less than half of the limit.
    #[must_use]
    pub fn period(&self) -> Duration {
        self.limit / PINGS_PER_LIMIT
    }
}

/// A line end would begin another assignment.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use tempfile::TempDir;
    use tokio::sync::{mpsc, oneshot};

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// A service manager's end of the notify socket.
    struct Manager {
        socket: tokio::net::UnixDatagram,
        notifier: Notifier,
        _dir: TempDir,
    }

    impl Manager {
        fn start() -> Self {
            let dir = TempDir::new().unwrap();
            let path = dir.path().join("notify");
            let socket = tokio::net::UnixDatagram::bind(&path).unwrap();
            let notifier = Notifier::new(Some(path.as_os_str())).unwrap();
            Self { socket, notifier, _dir: dir }
        }

        async fn message(&self) -> String {
            let mut bytes = [0; 1024];
            let length = timeout(SOON, self.socket.recv(&mut bytes)).await.unwrap().unwrap();
            String::from_utf8(bytes[..length].to_vec()).unwrap()
        }

        async fn hears_nothing_for(&self, time: Duration) {
            let mut bytes = [0; 1024];
            let heard = timeout(time, self.socket.recv(&mut bytes)).await;
            assert!(heard.is_err(), "heard {:?}", String::from_utf8_lossy(&bytes));
        }
    }

    #[tokio::test]
    async fn messages_of_a_life() {
        let manager = Manager::start();
        manager.hears_nothing_for(Duration::from_millis(50)).await;
        manager.notifier.ready("serving 2 jobs\nREADY=0");
        assert_eq!(manager.message().await, "READY=1\nSTATUS=serving 2 jobs READY=0");
        manager.notifier.status("3 jobs");
        assert_eq!(manager.message().await, "STATUS=3 jobs");
        manager.notifier.extend_timeout(Duration::from_millis(1500));
        assert_eq!(manager.message().await, "EXTEND_TIMEOUT_USEC=1500000");
        manager.notifier.stopping();
        assert_eq!(manager.message().await, "STOPPING=1\nSTATUS=stopping");
    }

    #[test]
    fn without_a_manager_nothing_happens() {
        for nothing in [None, Some(OsStr::new(""))] {
            Notifier::new(nothing).unwrap().ready("fine");
        }
        let error = Notifier::new(Some(OsStr::new("vsock:2:1"))).unwrap_err();
        assert!(error.to_string().contains("vsock:2:1"), "{error}");
    }

    #[tokio::test]
    async fn an_abstract_address_is_understood() {
        let name = format!("nodus-test-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        Notifier::new(Some(OsStr::new(&format!("@{name}")))).unwrap().status("here");
        let mut bytes = [0; 64];
        let length = socket.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"STATUS=here");
    }

    #[tokio::test]
    async fn a_manager_that_is_gone_does_no_harm() {
        let manager = Manager::start();
        let Manager { socket, notifier, _dir } = manager;
        drop(socket);
        notifier.status("nobody listens");
    }

    #[test]
    fn c94_only_our_own_watchdog_counts() {
        let limit = |watchdog: Option<Watchdog>| watchdog.map(|watchdog| watchdog.limit);
        let second = Some(Duration::from_secs(1));
        assert_eq!(limit(Watchdog::new(Some("1000000"), Some("7"), 7)), second);
        assert_eq!(limit(Watchdog::new(Some("1000000"), None, 7)), second);
        assert_eq!(Watchdog::new(Some("1000000"), Some("8"), 7), None);
        assert_eq!(Watchdog::new(Some("1000000"), Some(""), 7), None);
        for nothing in [None, Some("0"), Some(""), Some("soon")] {
            assert_eq!(Watchdog::new(nothing, Some("7"), 7), None);
        }
        let watchdog = Watchdog::new(Some("1000000"), None, 7).unwrap();
        assert!(watchdog.period() < Duration::from_millis(500));
    }

    /// A main loop that answers round trips, and hangs once it is told to.
    fn main_loop() -> (mpsc::Sender<oneshot::Sender<()>>, oneshot::Sender<()>) {
        let (asks, mut asked) = mpsc::channel::<oneshot::Sender<()>>(1);
        let (hang, mut hung) = oneshot::channel();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    biased;
                    _ = &mut hung => std::future::pending::<()>().await,
                    Some(answer) = asked.recv() => answer.send(()).unwrap(),
                }
            }
        });
        (asks, hang)
    }

    #[tokio::test]
    async fn c94_long_work_keeps_the_pings_and_a_hung_loop_ends_them() {
        let manager = Manager::start();
        let (asks, hang) = main_loop();
        let probe = move || {
            let asks = asks.clone();
            async move {
                let (answer, answered) = oneshot::channel();
                asks.send(answer).await.unwrap();
                answered.await.unwrap();
            }
        };
        let watchdog = Watchdog::new(Some("1000000"), None, 1).unwrap();
        let (notifier, stop) = (manager.notifier.clone(), CancellationToken::new());
        let feeding = tokio::spawn(notifier.watched(Some(watchdog)).watchdog(probe, stop.clone()));

        // Work that blocks its thread, as a file system that does not answer does.
        let (end_work, work) = std::sync::mpsc::channel::<()>();
        let working = tokio::task::spawn_blocking(move || work.recv());
        let mut last = Instant::now();
        for _ in 0..9 {
            assert_eq!(manager.message().await, "WATCHDOG=1");
            assert!(last.elapsed() < watchdog.limit, "a ping was missed: {:?}", last.elapsed());
            last = Instant::now();
        }
        end_work.send(()).unwrap();
        working.await.unwrap().unwrap();

        hang.send(()).unwrap();
        // One that was under way may still come.
        let _ = timeout(watchdog.period() * 2, manager.socket.recv(&mut [0; 64])).await;
        manager.hears_nothing_for(Duration::from_millis(1200)).await;
        stop.cancel();
        timeout(SOON, feeding).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn c93_more_time_is_asked_for_while_there_is_progress() {
        let manager = Manager::start();
        let done = Arc::new(AtomicU64::new(0));
        let copied = Arc::clone(&done);
        // Progress for three steps, then none.
        let progress = move || copied.fetch_add(1, Ordering::Relaxed).min(3);
        let step = Duration::from_millis(40);
        timeout(SOON, manager.notifier.extend_while(progress, step, SOON)).await.unwrap();
        for _ in 0..4 {
            assert_eq!(manager.message().await, "EXTEND_TIMEOUT_USEC=80000");
        }
        manager.hears_nothing_for(Duration::from_millis(50)).await;

        let endless = || done.fetch_add(1, Ordering::Relaxed);
        let most = Duration::from_millis(100);
        timeout(SOON, manager.notifier.extend_while(endless, step, most)).await.unwrap();
        assert_eq!(manager.message().await, "EXTEND_TIMEOUT_USEC=80000");
    }
}
