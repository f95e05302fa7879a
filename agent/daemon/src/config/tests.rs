use std::num::NonZeroUsize;
use std::time::Duration;

use tempfile::TempDir;

use super::file::{AgentSection, CadenceSection, LimitsSection, StoreSection};
use super::*;

const SHIPPED: &str = include_str!("../../../../packaging/agent.toml");

/// Loads `agent.toml` with this text and drop-ins.
fn load(text: &str, drop_ins: &[(&str, &str)]) -> Result<Settings, String> {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("agent.toml");
    std::fs::write(&file, text).unwrap();
    std::fs::create_dir(dir.path().join("agent.toml.d")).unwrap();
    for (name, text) in drop_ins {
        std::fs::write(dir.path().join("agent.toml.d").join(name), text).unwrap();
    }
    Settings::load(&file).map_err(|error| error.to_string())
}

/// The shipped file with the `#` before each key taken away.
fn uncommented() -> String {
    let is_key = |line: &str| line.starts_with('#') && !line.starts_with("# ") && line.len() > 1;
    let lines = SHIPPED.lines().map(|line| if is_key(line) { &line[1..] } else { line });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_shipped_file_says_what_the_defaults_are() {
    assert_eq!(load(SHIPPED, &[]).unwrap(), Settings::default());
    assert_eq!(load(&uncommented(), &[]).unwrap(), Settings::default());
}

#[test]
fn the_shipped_file_mentions_every_key() {
    let table: toml::Table = uncommented().parse().unwrap();
    for (section, keys) in [
        ("agent", AgentSection::KEYS),
        ("store", StoreSection::KEYS),
        ("cadence", CadenceSection::KEYS),
        ("limits", LimitsSection::KEYS),
    ] {
        let mentioned = table[section].as_table().unwrap();
        for key in keys {
            assert!(mentioned.contains_key(*key), "[{section}] {key} is not in the shipped file");
        }
        assert_eq!(mentioned.len(), keys.len());
    }
}

#[test]
fn later_files_win_key_by_key() {
    let settings = load(
        "[agent]\nlog = \"warn\"\nstop_timeout = \"5s\"\n[store]\nurl = \"file:///a\"",
        &[
            ("20-b.toml", "[agent]\nstop_timeout = \"20s\""),
            ("10-a.toml", "[agent]\nstop_timeout = \"10s\"\nthreads = 3"),
            ("30-c.conf", "not read"),
            (".40-d.toml", "not read"),
        ],
    )
    .unwrap();
    assert_eq!(settings.log, "warn");
    assert_eq!(settings.stop_timeout, Duration::from_secs(20));
    assert_eq!(settings.copy_threads(NonZeroUsize::new(8).unwrap()), 3);
    assert_eq!(settings.store, Path::new("/a"));
}

#[test]
fn the_store_follows_the_state_directory() {
    let settings = load("[agent]\nstate_dir = \"/data/nodus/\"", &[]).unwrap();
    assert_eq!(settings.store, Path::new("/data/nodus/store"));
}

#[test]
fn what_is_refused_names_file_line_and_key() {
    for (text, parts) in [
        ("[agent]\nlogs = \"info\"", &["line 2", "`logs`", "`log`"][..]),
        ("[agents]\n", &["line 1", "`agents`"]),
        ("[agent]\n\nstop_timeout = \"2h\"", &["line 3", "\"2h\"", "1s to 1h"]),
        ("[agent]\nstop_timeout = \"30\"", &["\"30\"", "90s"]),
        ("[agent]\nthreads = 0", &["line 2", "\"auto\""]),
        ("[agent]\nruntime_dir = \"run\"", &["\"run\"", "absolute"]),
        ("[agent]\nstate_dir = \"/a/../b\"", &["\"/a/../b\"", "absolute"]),
        ("[agent]\nsocket_mode = \"0777\"", &["\"0777\"", "\"0660\""]),
        ("[agent]\nlog = \"x=y=z\"", &["\"x=y=z\"", "log filter"]),
        ("[store]\nurl = \"s3://bucket/x\"", &["s3://", "not supported in this version"]),
        ("[cadence]\ncapacity = \"cheap\"", &["line 2", "`cheap`", "on-demand"]),
        ("[cadence]\nprior_weight = 0.0", &["0.1"]),
        ("[limits]\nrequest_body = \"1Ki\"", &["1Ki", "64Ki"]),
        ("[limits]\njobs = 0", &["line 2"]),
    ] {
        let error = load(text, &[]).unwrap_err();
        for part in parts.iter().chain(&["agent.toml"]) {
            assert!(error.contains(part), "{text:?}: {error:?} does not have {part:?}");
        }
    }
    let error = load("", &[("10-x.toml", "[limits]\ntypo = 1")]).unwrap_err();
    assert!(error.contains("10-x.toml") && error.contains("`typo`"), "{error}");
}

#[test]
fn a_file_that_was_asked_for_has_to_exist() {
    let dir = TempDir::new().unwrap();
    let error = Settings::load(&dir.path().join("agent.toml")).unwrap_err();
    assert!(error.to_string().contains("agent.toml"), "{error}");
}

#[test]
fn threads_stay_within_the_processors() {
    let processors = |count| NonZeroUsize::new(count).unwrap();
    let auto = Settings::default();
    assert_eq!([1, 2, 3, 16].map(|count| auto.copy_threads(processors(count))), [1, 1, 1, 8]);
    let fixed = load("[agent]\nthreads = 12", &[]).unwrap();
    assert_eq!([4, 64].map(|count| fixed.copy_threads(processors(count))), [4, 12]);
}
