use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, thread};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::*;

const SOON: Duration = Duration::from_secs(10);

fn place(path: PathBuf) -> Place {
    Place { path, mode: 0o660, owner: None, dir_mode: 0o750 }
}

/// Answers every client with one byte.
fn serve(mut bound: Bound) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            let mut stream = bound.accept().await.unwrap();
            tokio::spawn(async move {
                let mut byte = [0];
                while stream.read_exact(&mut byte).await.is_ok() {
                    stream.write_all(&byte).await.unwrap();
                }
            });
        }
    })
}

async fn echo(stream: &mut UnixStream) {
    stream.write_all(b"x").await.unwrap();
    let mut byte = [0];
    timeout(SOON, stream.read_exact(&mut byte)).await.unwrap().unwrap();
}

/// Binds and forgets the socket, as a killed process does.
fn leave_stale(path: &Path) {
    drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    assert!(fs::symlink_metadata(path).unwrap().file_type().is_socket());
}

#[tokio::test]
async fn c60_a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("events.sock");
    leave_stale(&path);
    fs::create_dir(dir.path().join(".events.sock.bind")).unwrap();
    let server = serve(Bound::bind(place(path.clone())).await.unwrap());

    let second = Bound::bind(place(path.clone())).await.unwrap_err();
    assert!(matches!(second, BindError::InUse { .. }), "{second}");
    echo(&mut UnixStream::connect(&path).await.unwrap()).await;
    server.abort();
    assert!(server.await.unwrap_err().is_cancelled());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "socket, lock and staging are gone");
}

#[tokio::test]
async fn c60_a_server_without_our_lock_is_left_alone() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("events.sock");
    let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let error = Bound::bind(place(path.clone())).await.unwrap_err();
    assert!(matches!(error, BindError::InUse { .. }), "{error}");
    StdStream::connect(&path).unwrap();
    drop(other);
}

#[tokio::test]
async fn c60_nothing_but_a_socket_is_removed() {
    let dir = TempDir::new().unwrap();
    let target = dir.path().join("precious");
    fs::write(&target, "data").unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("file"), "data").unwrap();
    fs::create_dir(path("directory")).unwrap();
    symlink(&target, path("link")).unwrap();
    symlink(dir.path().join("nowhere"), path("dangling")).unwrap();
    for (name, kind) in [
        ("file", "regular file"),
        ("directory", "directory"),
        ("link", "symbolic link"),
        ("dangling", "symbolic link"),
    ] {
        let error = Bound::bind(place(path(name))).await.unwrap_err();
        assert!(error.to_string().contains(kind), "{error}");
        fs::symlink_metadata(path(name)).unwrap();
    }
    assert_eq!(fs::read_to_string(target).unwrap(), "data");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn c60_one_of_many_simultaneous_starts_wins() {
    let dir = TempDir::new().unwrap();
    for round in 0..200 {
        let path = dir.path().join(format!("{round}.sock"));
        leave_stale(&path);
        let starts: Vec<_> =
            (0..4).map(|_| tokio::spawn(Bound::bind(place(path.clone())))).collect();
        let mut winners = Vec::new();
        for start in starts {
            match start.await.unwrap() {
                Ok(bound) => winners.push(bound),
                Err(error) => assert!(matches!(error, BindError::InUse { .. }), "{error}"),
            }
        }
        assert_eq!(winners.len(), 1, "round {round}");
        let server = serve(winners.remove(0));
        echo(&mut UnixStream::connect(&path).await.unwrap()).await;
        server.abort();
    }
}

#[tokio::test]
async fn c61_a_path_over_the_limit_is_refused() {
    let dir = TempDir::new().unwrap();
    let fill = MAX_PATH - dir.path().as_os_str().len() - 1;
    let exact = dir.path().join("x".repeat(fill));
    let server = serve(Bound::bind(place(exact.clone())).await.unwrap());
    echo(&mut UnixStream::connect(&exact).await.unwrap()).await;
    server.abort();
    assert!(server.await.is_err());

    let error = Bound::bind(place(dir.path().join("x".repeat(fill + 1)))).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("108 bytes") && text.contains("107"), "{text}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "no socket with a cut name");
}

#[tokio::test]
async fn c62_a_directory_for_everyone_is_refused_unless_sticky() {
    let dir = TempDir::new().unwrap();
    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let error = Bound::bind(place(open.join("s"))).await.unwrap_err();
    assert!(error.to_string().contains("mode 777"), "{error}");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).unwrap();
    Bound::bind(place(open.join("s"))).await.unwrap();
}

/// Runs in a thread with a umask of its own, binds, and gives the modes of directory and socket.
fn modes_under(umask: u32, place: Place) -> (u32, u32) {
    let bind = move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS).unwrap();
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(umask));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let bound = Bound::bind(place).await.unwrap();
            let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o7777;
            (mode(bound.path().parent().unwrap()), mode(bound.path()))
        })
    };
    thread::spawn(bind).join().unwrap()
}

#[test]
fn c62_modes_do_not_depend_on_the_umask() {
    let root = TempDir::new().unwrap();
    for umask in [0o000, 0o077] {
        let path = root.path().join(format!("{umask:o}/events.sock"));
        assert_eq!(modes_under(umask, place(path)), (0o750, 0o660));
    }
}

/// Connects as another user until told to stop, and says how often that worked.
fn intruder(path: PathBuf, stop: Arc<AtomicBool>) -> thread::JoinHandle<u32> {
    thread::spawn(move || {
        nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65534));
        let mut connected = 0;
        while !stop.load(Ordering::Relaxed) {
            connected += u32::from(StdStream::connect(&path).is_ok());
        }
        connected
    })
}

#[test]
fn c62_another_user_never_connects_during_start() {
    if !rustix::process::geteuid().is_root() {
        return; // Only root can act as another user; the modes are tested above for everyone.
    }
    let root = TempDir::new().unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // For its user alone: the intruder's thread keeps root's groups.
    let private = |path| Place { mode: 0o600, dir_mode: 0o755, ..place(path) };
    for umask in [0o000, 0o077] {
        let path = root.path().join(format!("{umask:o}/events.sock"));
        let stop = Arc::new(AtomicBool::new(false));
        let intruder = intruder(path.clone(), Arc::clone(&stop));
        for _ in 0..100 {
            assert_eq!(modes_under(umask, private(path.clone())), (0o755, 0o600));
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(intruder.join().unwrap(), 0);
    }
}

#[tokio::test]
async fn c62_the_owner_is_as_configured() {
    if !rustix::process::geteuid().is_root() {
        return; // Only root can give a socket away; the mode is tested above for everyone.
    }
    let dir = TempDir::new().unwrap();
    let owner = Some(Owner { uid: 1234, gid: 5678 });
    let bound = Bound::bind(Place { owner, ..place(dir.path().join("s")) }).await.unwrap();
    let meta = fs::symlink_metadata(bound.path()).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (1234, 5678, 0o660));
}

async fn until_reachable(path: &Path, inode: u64) {
    let deadline = Instant::now() + SOON;
    loop {
        if fs::symlink_metadata(path).is_ok_and(|meta| meta.ino() != inode) {
            return;
        }
        assert!(Instant::now() < deadline, "{} was not made again", path.display());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn c69_a_removed_socket_and_lock_come_back() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("run/events.sock");
    let lock = dir.path().join("run/events.sock.lock");
    let server = serve(Bound::bind(place(path.clone())).await.unwrap());
    let mut early = UnixStream::connect(&path).await.unwrap();
    echo(&mut early).await;

    for (what, victims) in
        [("socket", vec![&path]), ("lock", vec![&lock]), ("both", vec![&path, &lock])]
    {
        let inode = fs::symlink_metadata(victims[0]).unwrap().ino();
        victims.iter().for_each(|victim| fs::remove_file(victim).unwrap());
        // At once, before the owner can have noticed.
        let second = Bound::bind(place(path.clone())).await.unwrap_err();
        assert!(matches!(second, BindError::InUse { .. }), "{what}: {second}");
        until_reachable(victims[0], inode).await;
        let meta = fs::symlink_metadata(&path).unwrap();
        assert_eq!(meta.mode() & 0o7777, 0o660);
        echo(&mut UnixStream::connect(&path).await.unwrap()).await;
        let second = Bound::bind(place(path.clone())).await.unwrap_err();
        assert!(matches!(second, BindError::InUse { .. }), "{what}: {second}");
        echo(&mut early).await;
    }

    fs::remove_dir_all(dir.path().join("run")).unwrap();
    until_reachable(&path, 0).await;
    echo(&mut UnixStream::connect(&path).await.unwrap()).await;
    echo(&mut early).await;
    server.abort();
}
