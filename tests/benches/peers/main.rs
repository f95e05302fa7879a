//! Checkpoints beside what a user would do instead: `cargo bench -p nodus-tests --bench peers`.
//!
//! The same data, the same disk, the same run, several rounds in turn; every figure is *durable*
//! (synced) and of a whole process. `docs/performance.md` says what the figures mean.

#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

mod agent;
mod data;
mod measure;
mod nodus;

use std::path::{Path, PathBuf};

use measure::{Figure, Table, run_nodus, shell};

/// What the run is made of.
struct Options {
    dir: PathBuf,
    rounds: usize,
    weights: u64,
    files: u64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if arguments.first().is_some_and(|first| first == "nodus") {
        nodus::main(&arguments[1..]);
        return;
    }
    let options = options(&arguments);
    let scratch = tempfile::Builder::new().prefix("nodus-bench-").tempdir_in(&options.dir).unwrap();
    let rounds = options.rounds;
    println!("rounds {rounds}, directory {}\n", options.dir.display());

    let weights = scratch.path().join("weights");
    data::weights(&weights, options.weights);
    workload("weights", &weights, scratch.path(), rounds, |dir, round| {
        data::touch_weights(dir, round);
    });
    agent::memory(&weights);
    std::fs::remove_dir_all(&weights).unwrap();

    let small = scratch.path().join("small");
    data::small_files(&small, options.files);
    workload("small files", &small, scratch.path(), rounds, |dir, round| {
        data::touch_small_files(dir, options.files, round);
    });
    agent::memory(&small);
}

fn options(arguments: &[String]) -> Options {
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let number =
        |name: &str, default: u64| value(name).map_or(default, |text| text.parse().unwrap());
    Options {
        dir: value("--dir").map_or_else(std::env::temp_dir, PathBuf::from),
        rounds: usize::try_from(number("--rounds", 5)).unwrap(),
        weights: number("--weights-mib", 2048) << 20,
        files: number("--files", 50_000),
    }
}

/// One kind of data: full, unchanged and incremental snapshot, and restore, in turn with the peers.
fn workload(name: &str, source: &Path, scratch: &Path, rounds: usize, change: impl Fn(&Path, u64)) {
    let mut table = Table::new(name);
    let work = scratch.join("work");
    let (from, to) = (source.display().to_string(), work.display().to_string());
    for round in 0..rounds {
        let fresh = || {
            let _ = std::fs::remove_dir_all(&work);
            std::fs::create_dir_all(&work).unwrap();
            rustix::fs::sync();
        };
        fresh();
        table.add("cp -a", "full", shell(&format!("cp -a {from} {to}/copy && sync -f {to}")));
        table.add("cp -a", "restore", shell(&format!("cp -a {to}/copy {to}/back && sync -f {to}")));
        fresh();
        table.add("tar", "full", shell(&format!("tar -C {from} -cf {to}/a.tar . && sync -f {to}")));
        table.add(
            "tar",
            "restore",
            shell(&format!("mkdir {to}/back && tar -C {to}/back -xf {to}/a.tar && sync -f {to}")),
        );
        fresh();
        let zstd = format!("tar -C {from} -cf - . | zstd -q -1 -T0 -o {to}/a.tzst && sync -f {to}");
        table.add("tar | zstd -1 -T0", "full", shell(&zstd));
        let unzstd = format!(
            "mkdir {to}/back && zstd -q -dc {to}/a.tzst | tar -C {to}/back -xf - && sync -f {to}"
        );
        table.add("tar | zstd -1 -T0", "restore", shell(&unzstd));
        fresh();
        let store = work.join("store");
        let ours = |seq: &str, operation: &str| -> Figure {
            run_nodus(&["snapshot", &store.display().to_string(), &from, seq], operation)
        };
        table.add("nodus", "full", ours("1", "full"));
        table.add("nodus", "unchanged", ours("2", "unchanged"));
        change(source, round as u64);
        table.add("nodus", "incremental", ours("3", "incremental"));
        let back = work.join("back");
        let restore = ["restore", &store.display().to_string(), &from, &back.display().to_string()];
        table.add("nodus", "restore", run_nodus(&restore, "restore"));
    }
    let _ = std::fs::remove_dir_all(&work);
    table.print();
}
