//! Manifests and targets that try to lead a restore out of the target.
#![allow(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

mod handmade;

use std::fs;
use std::os::unix::fs::symlink;

use handmade::{Handmade, Home, chunk, picture};
use nodus_checkpoint::restore::restore_newest;
use nodus_checkpoint::{Control, Error};
use serde_json::json;

/// Commits a good checkpoint 1 and this one as 2; nothing of 2 may ever be seen, and 1 comes back.
fn refused(why: &str, build: impl FnOnce(&mut Handmade)) {
    let home = Home::new();
    Handmade::new(1).file("good", b"good").commit(&home.store);
    let mut evil = Handmade::new(2);
    evil.file("a-first", b"visible?");
    build(&mut evil);
    evil.commit(&home.store);
    fs::write(home.dir.path().join("victim"), "canary").unwrap();
    fs::write(home.dir.path().join("job/victim"), "canary").unwrap();
    fs::create_dir(home.state()).unwrap();
    fs::write(home.state().join("before"), "as it was").unwrap();
    let before = picture(home.dir.path());

    let error = home.restore(2).unwrap_err();
    assert!(matches!(error, Error::Damaged { seq: 2, .. }), "{why}: {error}");
    assert_eq!(picture(home.dir.path()), before, "{why}: something was touched");

    let report =
        restore_newest(&home.store, None, &home.roots(), &handmade::options(), &Control::new());
    let report = report.unwrap();
    assert_eq!(report.seq, 1, "{why}");
    assert_eq!(report.passed_over[0].seq, 2, "{why}");
    assert_eq!(fs::read_dir(home.state()).unwrap().count(), 1, "{why}");
    assert_eq!(fs::read(home.dir.path().join("victim")).unwrap(), b"canary");
}

#[test]
fn c56_names_that_lead_out() {
    for path in ["../evil", "/evil", "b/../../evil", "b//c", "b/", "./b", ".", "..", "b%00c"] {
        refused(path, |evil| {
            evil.dir("b").file(path, b"evil");
        });
        refused(path, |evil| {
            evil.file(path, b"evil");
        });
    }
}

#[test]
fn c56_entries_below_what_is_no_directory() {
    refused("below a link", |evil| {
        evil.symlink("l", "..").file("l/evil", b"evil");
    });
    refused("below a file", |evil| {
        evil.file("f", b"").file("f/evil", b"evil");
    });
    refused("below nothing", |evil| {
        evil.file("nothing/evil", b"evil");
    });
    refused("the same name twice", |evil| {
        evil.symlink("l", "/").symlink("l", "..");
    });
}

#[test]
fn c56_hard_links_that_lead_out() {
    let link = |target: &str| json!({"type": "file", "size": 6, "hardlink": [0, target]});
    for target in ["../victim", "../../victim", "/etc/passwd", "later", "missing", "", "a\u{0}"] {
        refused(target, |evil| {
            evil.add("b", link(target)).file("later", b"later");
        });
    }
    refused("to a link", |evil| {
        evil.symlink("b", "../../victim").add("c", link("b"));
    });
    refused("to a directory", |evil| {
        evil.dir("b").add("c", link("b"));
    });
    refused("in another root", |evil| {
        evil.add("b", json!({"type": "file", "size": 6, "hardlink": [7, "b"]}));
    });
}

#[test]
fn c56_content_that_is_not_there() {
    refused("a frame of no base", |evil| {
        let mut frame = evil.frame(b"content");
        frame[0] = json!(1);
        let chunks = [chunk(0, 7, 0, &frame)];
        evil.add("b", json!({"type": "file", "size": 7, "chunks": chunks}));
    });
    refused("past the frame", |evil| {
        let frame = evil.frame(b"content");
        let chunks = [chunk(0, 7, 3, &frame)];
        evil.add("b", json!({"type": "file", "size": 7, "chunks": chunks}));
    });
    refused("past the file", |evil| {
        let frame = evil.frame(b"content");
        let chunks = [chunk(0, 7, 0, &frame)];
        evil.add("b", json!({"type": "file", "size": 6, "chunks": chunks}));
    });
    refused("overlapping", |evil| {
        let frame = evil.frame(b"content");
        let chunks = [chunk(0, 7, 0, &frame), chunk(3, 7, 0, &frame)];
        evil.add("b", json!({"type": "file", "size": 10, "chunks": chunks}));
    });
    refused("a frame larger than any", |evil| {
        let mut frame = evil.frame(b"content");
        frame[3] = json!(1_u64 << 40);
        let chunks = [chunk(0, 7, 0, &frame)];
        evil.add("b", json!({"type": "file", "size": 7, "chunks": chunks}));
    });
    refused("another hash", |evil| {
        let mut frame = evil.frame(b"content");
        frame[4] = json!("00".repeat(32));
        let chunks = [chunk(0, 7, 0, &frame)];
        evil.add("b", json!({"type": "file", "size": 7, "chunks": chunks}));
    });
}

#[test]
fn c56_a_root_that_is_not_the_jobs() {
    let home = Home::new();
    let mut evil = Handmade::new(1);
    evil.roots = vec!["/etc".to_owned()];
    evil.file("passwd", b"evil").commit(&home.store);
    assert!(matches!(home.restore(1), Err(Error::Refused(_))));
    let mut evil = Handmade::new(2);
    evil.roots = vec!["nodus/../state".to_owned()];
    evil.commit(&home.store);
    assert!(matches!(home.restore(2), Err(Error::Damaged { .. })));
}

#[test]
fn c57_links_in_the_target_are_replaced_and_never_followed() {
    let home = Home::new();
    let mut made = Handmade::new(1);
    made.symlink("b", "data").dir("data").file("data/f", b"new").file("f", b"new");
    made.commit(&home.store);
    let outside = home.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("victim"), "canary").unwrap();
    fs::write(outside.join("f"), "canary").unwrap();
    fs::create_dir(home.state()).unwrap();
    symlink(&outside, home.state().join("data")).unwrap();
    symlink(outside.join("victim"), home.state().join("f")).unwrap();
    let before = picture(&outside);

    home.restore(1).unwrap();
    assert_eq!(picture(&outside), before);
    for path in ["data", "data/f", "f"] {
        let meta = home.state().join(path).symlink_metadata().unwrap();
        assert!(!meta.is_symlink(), "{path}");
    }
    assert_eq!(fs::read(home.state().join("data/f")).unwrap(), b"new");
    assert_eq!(fs::read_link(home.state().join("b")).unwrap().to_str(), Some("data"));
}

#[test]
fn c57_a_target_that_is_a_link_is_replaced() {
    let home = Home::new();
    Handmade::new(1).file("f", b"new").commit(&home.store);
    let outside = home.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("f"), "canary").unwrap();
    symlink(&outside, home.state()).unwrap();
    home.restore(1).unwrap();
    assert_eq!(fs::read(outside.join("f")).unwrap(), b"canary");
    assert!(home.state().symlink_metadata().unwrap().is_dir());
}
