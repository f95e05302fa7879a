//! Whole processes, measured from outside.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Instant;

/// One run of one command.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figure {
    /// Seconds until it ended.
    pub(crate) wall: f64,
    /// Seconds of processors, of all its processes.
    pub(crate) cpu: f64,
    /// Largest resident memory of one process in MiB, where it says so.
    pub(crate) memory: f64,
    /// Milliseconds from request to captured, where it says so.
    pub(crate) captured: f64,
    /// MiB that it stored, where it says so.
    pub(crate) stored: f64,
}

/// Runs a shell command that must succeed.
pub(crate) fn shell(command: &str) -> Figure {
    let mut shell = Command::new("sh");
    shell.args(["-ec", command]);
    timed(&mut shell).0
}

/// Runs this benchmark's own Nodus process.
pub(crate) fn run_nodus(arguments: &[&str], what: &str) -> Figure {
    let mut own = Command::new(std::env::current_exe().unwrap());
    own.arg("nodus").args(arguments);
    let (mut figure, output) = timed(&mut own);
    for line in output.lines() {
        let Some((key, value)) = line.split_once('=') else { continue };
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{what}: {line}"));
        match key {
            "memory_mib" => figure.memory = value,
            "captured_ms" => figure.captured = value,
            "stored_mib" => figure.stored = value,
            _ => {}
        }
    }
    figure
}

fn timed(command: &mut Command) -> (Figure, String) {
    let before = children_cpu();
    let start = Instant::now();
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().unwrap();
    let wall = start.elapsed().as_secs_f64();
    assert!(output.status.success(), "{command:?}: {}", output.status);
    let cpu = children_cpu() - before;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (Figure { wall, cpu, ..Figure::default() }, text)
}

/// Processor seconds of all children that have ended: fields 16 and 17 of `/proc/self/stat`.
#[allow(clippy::cast_precision_loss)] // Ticks of a benchmark are few.
fn children_cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
    let ticks: u64 = fields[13..15].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// The figures of one kind of data.
pub(crate) struct Table {
    name: String,
    figures: BTreeMap<(String, String), Vec<Figure>>,
}

impl Table {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), figures: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, tool: &str, operation: &str, figure: Figure) {
        self.figures.entry((operation.to_owned(), tool.to_owned())).or_default().push(figure);
    }

    /// Medians, the slowest and fastest round, and the ratio to `cp -a`, as a Markdown table.
    pub(crate) fn print(&self) {
        println!("## {}\n", self.name);
        println!(
            "| operation | tool | s (min to max) | x cp -a | CPU s | peak MiB | captured ms | stored MiB |"
        );
        println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
        for operation in ["full", "unchanged", "incremental", "restore"] {
            let base = self.median(operation, "cp -a", |figure| figure.wall);
            for tool in ["cp -a", "tar", "tar | zstd -1 -T0", "nodus"] {
                self.print_row(operation, tool, base);
            }
        }
        println!();
    }

    fn print_row(&self, operation: &str, tool: &str, base: Option<f64>) {
        let of = |part: fn(&Figure) -> f64| self.median(operation, tool, part);
        let Some(wall) = of(|figure| figure.wall) else { return };
        let runs = &self.figures[&(operation.to_owned(), tool.to_owned())];
        let low = runs.iter().map(|figure| figure.wall).fold(f64::MAX, f64::min);
        let high = runs.iter().map(|figure| figure.wall).fold(0.0, f64::max);
        let ratio = base.map(|base| format!("{:.2}", wall / base)).unwrap_or_default();
        let shown = |value: Option<f64>, digits: usize| {
            let value = value.filter(|value| *value > 0.0);
            value.map(|value| format!("{value:.digits$}")).unwrap_or_default()
        };
        println!(
            "| {operation} | {} | {wall:.3} ({low:.3} to {high:.3}) | {ratio} | {:.2} | {} | {} | {} |",
            tool.replace('|', "\\|"),
            of(|figure| figure.cpu).unwrap_or_default(),
            shown(of(|figure| figure.memory), 0),
            shown(of(|figure| figure.captured), 1),
            shown(of(|figure| figure.stored), 1),
        );
    }

    fn median(&self, operation: &str, tool: &str, part: impl Fn(&Figure) -> f64) -> Option<f64> {
        let runs = self.figures.get(&(operation.to_owned(), tool.to_owned()))?;
        let mut values: Vec<f64> = runs.iter().map(part).collect();
        values.sort_by(f64::total_cmp);
        Some(values[values.len() / 2])
    }
}
