//! The binaries under test, of the workspace, profile and target directory this test is from.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Where a file of the source tree is; `name` is relative to the root of the workspace.
#[must_use]
pub fn source(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("the crate is a member of the workspace").join(name)
}

/// A built binary of the workspace, such as `nodusctl`. The first call in a process builds them all.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let path = BUILT.get_or_init(build).join(name);
    assert!(path.exists(), "the workspace has no binary {name}: {} is missing", path.display());
    path
}

/// Builds as this test was built, and returns where the binaries are.
fn build() -> PathBuf {
    let directory = profile_directory();
    let target = directory.parent().expect("<target>/<profile>");
    let profile = match directory.file_name().and_then(|name| name.to_str()) {
        Some("debug") => "dev",
        Some(profile) => profile,
        None => panic!("{} names no profile", directory.display()),
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--workspace", "--bins", "--profile", profile])
        .arg("--manifest-path")
        .arg(source("Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .status()
        .expect("cargo runs");
    assert!(status.success(), "the binaries do not build");
    directory
}

/// `<target>/<profile>`, from `<target>/<profile>/deps/<this test>`.
fn profile_directory() -> PathBuf {
    let this = std::env::current_exe().expect("a running program has a path");
    let deps = this.parent().expect("a file has a directory");
    deps.parent().expect("deps is in the profile's directory").to_owned()
}
